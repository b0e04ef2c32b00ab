// Apply the viewer's theme before the page is painted. This script is not a module, because modules run later.

try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* the browser does not store anything */ }
