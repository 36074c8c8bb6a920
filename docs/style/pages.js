// The button of each code block is in a <nav>: too many landmarks for one page.
new MutationObserver(() => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])")) nav.role = "none";
}).observe(document.body, { childList: true, subtree: true });
