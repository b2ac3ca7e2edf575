  document.documentElement.classList.add("js");

  // Theme: the system's until the button is pressed; kept where the browser keeps anything for files.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const button = one("#theme");
  const kept = { get: () => { try { return localStorage.getItem("bakeoff-theme"); } catch { return null; } },
    set: (theme) => { try { localStorage.setItem("bakeoff-theme", theme); } catch { /* not kept, then */ } } };
  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const label = () => { button.textContent = theme() === "dark" ? "Light theme" : "Dark theme"; };
  if (["light", "dark"].includes(kept.get())) root.dataset.theme = kept.get();
  button.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    kept.set(root.dataset.theme);
    label();
  });
  dark.addEventListener("change", label);
  label();
