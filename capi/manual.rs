//! Manual pages of the functions, made from the header: what it says of a function is the page.
use std::path::Path;

/// Writes a page, `NAME.3`, for each function that the header declares.
pub fn write(header: &str, version: &str, folder: &Path) -> Result<(), String> {
    for (comment, rest) in header.split("/*\n").skip(1).filter_map(|part| part.split_once("*/\n")) {
        let Some(prototype) = prototype(rest) else {
            continue;
        };
        let name = name(prototype);
        super::write(&folder.join(format!("{name}.3")), page(name, prototype, comment, version))?;
    }
    Ok(())
}

/// The declaration that a comment stands before, if it is a function's.
fn prototype(rest: &str) -> Option<&str> {
    let end = rest.find(';')? + 1;
    let declared = rest[..end].trim();
    let is_function = declared.contains("wedjat_") && declared.ends_with(");");
    (is_function && !declared.contains('{') && !declared.starts_with('#')).then_some(declared)
}

fn name(prototype: &str) -> &str {
    let before = prototype.split('(').next().unwrap_or_default();
    before.rsplit([' ', '*']).next().unwrap_or_default()
}

fn page(name: &str, prototype: &str, comment: &str, version: &str) -> String {
    let mut sections = comment.split("# ");
    let described = sections.next().unwrap_or_default();
    let brief = described.split(". ").next().and_then(|text| text.split("\n\n").next());
    let brief = text(brief.unwrap_or_default());
    let mut page = format!(
        ".TH {name} 3 \"\" \"wedjat {version}\"\n.SH NAME\n{name} \\- {}\n.SH SYNOPSIS\n.nf\n#include <wedjat.h>\n.PP\n{}\n.fi\n\
         .SH DESCRIPTION\n{}\n",
        brief.trim_end_matches(['.', '\n']).replace('\n', " "),
        prototype.replace('\\', "\\e"),
        text(described)
    );
    for section in sections {
        let (head, body) = section.split_once('\n').unwrap_or((section, ""));
        page += &match head.trim() {
            "Safety" => format!(".SH CAVEATS\nNot checked, but relied on:\n{}\n", text(body)),
            head => format!(".SH {}\n{}\n", head.to_uppercase(), text(body)),
        };
    }
    page + ".SH SEE ALSO\n.BR wedjat (1),\nthe header wedjat.h, and docs/library.md of wedjat's sources\n"
}

/// Prose as troff takes it: no line begins with one of its requests.
fn text(prose: &str) -> String {
    let lines = prose.trim().lines().map(|line| match line.trim() {
        "" => ".PP".to_owned(),
        line => line.replace('\\', "\\e").replace('`', ""),
    });
    lines
        .map(|line| if line.starts_with('\'') { format!("\\&{line}") } else { line })
        .collect::<Vec<_>>()
        .join("\n")
}
