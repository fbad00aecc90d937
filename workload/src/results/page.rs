//! Self-contained HTML pages: tables and SVGs without external assets.

use std::fmt::Write as _;

/// Style sheet of every page.
const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color:#1a1a1a;background:#fff}figure{margin:1rem 0}svg{max-width:100%;height:auto}table{border-collapse:collapse;\
font-size:.85rem;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}td,th{padding:.25rem .55rem;\
text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}td:first-child,th:first-child{text-align:left}\
.invalid{color:#a00}pre{background:#f6f6f6;padding:1rem;overflow:auto;font-size:.8rem}";

/// Builds a page around `contents`, which is HTML. Escapes the title and the heading.
#[must_use]
pub fn html(title: &str, heading: &str, contents: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{}</h1>\n{contents}</body>\n</html>\n",
        escape(title),
        escape(heading)
    )
}

/// Builds a table. Each row has its cells, and true if its run is valid.
pub fn table<Row>(columns: &[&str], rows: impl IntoIterator<Item = (Row, bool)>) -> String
where
    Row: IntoIterator<Item: AsRef<str>>,
{
    let mut text = format!("<table>\n<tr>{}</tr>\n", cells("th", columns));
    for (row, valid) in rows {
        let class = if valid { "" } else { " class=\"invalid\"" };
        let _ = writeln!(text, "<tr{class}>{}</tr>", cells("td", row));
    }
    text + "</table>\n"
}

/// Builds a list with one item for each text, or with `none` if there is no text.
pub fn list<Text: AsRef<str>>(texts: impl IntoIterator<Item = Text>) -> String {
    let items = texts.into_iter().map(|text| format!("<li>{}</li>\n", escape(text.as_ref())));
    let items: String = items.collect();
    let items = if items.is_empty() { "<li>none</li>".to_owned() } else { items };
    format!("<ul>\n{items}</ul>\n")
}

/// Wraps each text in a table cell with this tag.
fn cells<Text: AsRef<str>>(tag: &str, texts: impl IntoIterator<Item = Text>) -> String {
    let cell = |text: Text| format!("<{tag}>{}</{tag}>", escape(text.as_ref()));
    texts.into_iter().map(cell).collect()
}

/// Escapes the special characters of HTML text. Not for attributes: quotes remain.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_invalid_rows_marked() {
        let page = html("a", "<b>", &table(&["x"], [(["1 < 2"], true), (["3 & 4"], false)]));
        assert!(page.contains("<h1>&lt;b&gt;</h1>") && page.contains("<td>1 &lt; 2</td>"));
        assert!(page.contains("<tr class=\"invalid\"><td>3 &amp; 4</td></tr>"), "{page}");
        assert_eq!(list::<&str>([]), "<ul>\n<li>none</li></ul>\n");
        assert_eq!(list(["a > b"]), "<ul>\n<li>a &gt; b</li>\n</ul>\n");
    }
}
