//! Style sheet and text escaping that all HTML reports share.

/// Style sheet of every report.
pub const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; color: CanvasText; background: Canvas; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; margin: 0.8rem 0; font-size: 0.88rem;
        font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.5rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
tr.sum td { font-weight: 600; background: var(--soft); }
svg { width: 100%; height: auto; }
.note { border-left: 4px solid #d97706; padding: 0.3rem 0.8rem; background: var(--soft); }
.bad { border-left-color: #dc2626; }
code { font-size: 0.92em; }
";

/// Escapes text for a page.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
