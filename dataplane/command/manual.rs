//! Manual pages of the commands and of the configuration file, which is docs/reference/configuration.md as troff, the
//! format of `man`.

use std::path::Path;

use clap::CommandFactory;

use super::Arguments;

/// Source of the page of the configuration file.
const CONFIGURATION: &str = include_str!("../../docs/reference/configuration.md");

/// Writes a page for each command into a folder, from the definitions of the arguments.
pub fn write(folder: &Path) -> std::io::Result<()> {
    clap_mangen::generate_to(Arguments::command(), folder)
}

/// Returns the page of the configuration file.
pub fn configuration() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let head = format!(
        ".TH wedjat.toml 5 \"\" \"wedjat {version}\"\n.SH NAME\nwedjat.toml \\- configuration of a leaf, a spine, and of programs \
         with the scheduler within them\n.SH DESCRIPTION\n"
    );
    let files = ".SH FILES\nPages of the form\n.I docs/*.md\nand\n.I examples/*\nlie in the folder share/doc/wedjat below the one that \
                 wedjat is installed in.\n.SH SEE ALSO\n.BR wedjat (1),\n.BR wedjat-check (1),\n.BR wedjat-leaf (1),\n.BR wedjat-spine (1)\n";
    head + &page(CONFIGURATION) + files
}

/// Converts Markdown as used in this project to troff: headings, tables, lists, fenced blocks and paragraphs.
fn page(text: &str) -> String {
    let (mut page, mut is_fenced, mut in_table) = (String::new(), false, false);
    // The first line is the title.
    for line in text.lines().skip(1) {
        let was_in_table = std::mem::replace(&mut in_table, line.starts_with('|') && !is_fenced);
        if line.starts_with("```") {
            is_fenced = !is_fenced;
            page += if is_fenced { ".PP\n.nf\n.RS\n" } else { ".RE\n.fi\n" };
        } else if is_fenced {
            page += &(plain(line) + "\n");
        } else if let Some(head) = line.strip_prefix("### ") {
            page += &format!(".SS {}\n", inline(head));
        } else if let Some(head) = line.strip_prefix("## ") {
            page += &format!(".SH {}\n", inline(head).to_uppercase());
        } else if let Some(row) = line.strip_prefix('|') {
            // The first row has the column names. The second row is a rule.
            if was_in_table && !row.starts_with("--") {
                let cells: Vec<_> = row.trim_end_matches('|').split(" | ").map(str::trim).collect();
                let (first, rest) = cells.split_first().unwrap_or((&"", &[]));
                let rest: Vec<_> = rest.iter().map(|cell| inline(cell)).collect();
                page += &format!(".TP\n.B {}\n{}\n", inline(first), rest.join("; "));
            }
        } else if let Some(item) = line.strip_prefix("- ") {
            page += &format!(".IP \\(bu 2\n{}\n", inline(item));
        } else if line.is_empty() {
            page += ".PP\n";
        } else {
            page += &(inline(line.trim_start()) + "\n");
        }
    }
    page
}

/// Removes the marks of Markdown from a line. Keeps text between backquotes, the text of links, and the path of each
/// linked page of this project.
fn inline(line: &str) -> String {
    // The text before `](` ends in `[` and the link's name. The part after it begins with the link's target.
    let mut parts = line.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (target, rest) = part.split_once(')').unwrap_or((part, ""));
        let start = text.rfind('[').unwrap_or(text.len());
        let name: String = text.drain(start..).skip(1).collect();
        let file = target.split('#').next().unwrap_or_default();
        let page = match file.strip_prefix("../") {
            Some(path) => format!("docs/{path}"),
            None => format!("docs/reference/{file}"),
        };
        text += &match file.ends_with(".md") {
            true if name == file => page,
            true => format!("{name} ({page})"),
            false => name,
        };
        text += rest;
    }
    plain(&text.replace("**", "").replace('`', ""))
}

/// Escapes a line so that troff sees no requests in it. Prints hyphens as ASCII, so that users can copy options.
fn plain(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_become_requests_and_nothing_else_does() {
        let text = "# A\n\nSee [limits.md](limits.md) and\n.this `x-y` [there](../howto/monitor.md#a).\n\n## `[leaf]`\n\n\
                    | key | default |\n|---|---|\n| `id` | 0 |\n\n- one\n\n```toml\n.a = '\\n'\n```\n";
        let expected = ".PP\nSee docs/reference/limits.md and\n\\&.this x\\-y there (docs/howto/monitor.md).\n.PP\n.SH [LEAF]\n.PP\n\
                        .TP\n.B id\n0\n.PP\n.IP \\(bu 2\none\n.PP\n.PP\n.nf\n.RS\n\\&.a = '\\en'\n.RE\n.fi\n";
        assert_eq!(page(text), expected);
    }

    #[test]
    fn configuration_page_has_keys_and_no_marks() {
        let page = configuration();
        for key in ["cores", "policy", "key_file", "worker_timeout_ms", "gateway"] {
            assert!(page.contains(&format!("\n.B {key}\n")), "{key}");
        }
        assert!(!page.contains('`') && !page.contains("]("));
    }
}
