//! Files of the status page, which the metrics listener serves. The page also explains each drop reason, from the table
//! in [`wedjat_core::reason`].

use std::fmt::Write as _;
use std::sync::LazyLock;

use hyper::body::Bytes;

use wedjat_core::reason::DropReason;

/// Line of the page in whose place the drop reasons stand.
const REASONS: &str = "<!-- reasons -->";

/// The page with the drop reasons.
static PAGE: LazyLock<Bytes> = LazyLock::new(|| {
    let page = include_str!("page/index.html");
    page.replace(REASONS, &DropReason::ALL.map(entry).concat()).into()
});

/// Returns the `Content-Type` and the bytes of the file at this path of a request; `None` for any other path.
pub fn resource(path: &str) -> Option<(&'static str, Bytes)> {
    let file = |kind, text: &'static str| (kind, Bytes::from_static(text.as_bytes()));
    Some(match path {
        "/" => ("text/html; charset=utf-8", PAGE.clone()),
        "/style.css" => file("text/css; charset=utf-8", include_str!("page/style.css")),
        "/status.js" => file("text/javascript; charset=utf-8", include_str!("page/status.js")),
        "/icon.svg" => file("image/svg+xml", include_str!("page/icon.svg")),
        _ => return None,
    })
}

/// Returns the HTML that explains a reason. The page's script links to it as `#reason-NAME`, and copies its first text.
fn entry(reason: DropReason) -> String {
    let (name, help) = (reason.name(), html(reason.help()));
    let look_at = html(reason.look_at());
    format!(
        "<div id=\"reason-{name}\"><dt><code>{name}</code></dt><dd>{help}</dd>\
         <dd>{look_at}</dd></div>\n"
    )
}

/// Converts a text of the table to HTML: escapes it, and turns words in backticks into code.
fn html(text: &str) -> String {
    let mut html = String::new();
    for (index, part) in text.split('`').enumerate() {
        let part = part.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        // Every second part stood between backticks.
        let _ = match index % 2 {
            0 => write!(html, "{part}"),
            _ => write!(html, "<code>{part}</code>"),
        };
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_explains_every_drop_reason() {
        let (_, page) = resource("/").unwrap();
        let page = std::str::from_utf8(&page).unwrap();
        assert!(!page.contains(REASONS) && !page.contains('`'));
        for reason in DropReason::ALL {
            let place = page.split_once(&format!("<div id=\"reason-{}\">", reason.name()));
            let (_, text) = place.unwrap_or_else(|| panic!("{} has no place", reason.name()));
            assert!(text.split("</div>").next().unwrap().contains(&html(reason.help())));
        }
        assert_eq!(html("`a<b` & c"), "<code>a&lt;b</code> &amp; c");
    }
}
