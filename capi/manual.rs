//! Manual pages (section 3, troff) of the functions in `wedjat.h`, for the build script.
//!
//! Input is the header as cbindgen writes it: each declaration follows its comment, which keeps the Markdown
//! headings of the Rust doc comment (`# Return value`, `# Errors`, `# Called from`, `# Safety`).
use std::collections::BTreeMap;

/// Returns a page for each function of the text `header`, with its file's name, `FUNCTION.3`.
pub fn pages(header: &str, version: &str) -> Vec<(String, String)> {
    let codes = codes(header);
    let parts = header.split("/*\n").skip(1).filter_map(|part| part.split_once("*/\n"));
    let pages = parts.filter_map(|(comment, rest)| {
        let prototype = prototype(rest)?;
        let name = name(prototype);
        Some((format!("{name}.3"), page(name, prototype, comment, version, &codes)))
    });
    pages.collect()
}

/// Returns the comment of each error code in troff, by the code's name (`WEDJAT_ERROR_...`).
fn codes(header: &str) -> BTreeMap<&str, String> {
    let comments = header.split("/*\n").skip(1).filter_map(|part| part.split_once("*/\n#define "));
    let codes = comments.filter_map(|(comment, rest)| {
        let (name, _) = rest.split_once(' ')?;
        name.starts_with("WEDJAT_ERROR_").then(|| (name, text(comment)))
    });
    codes.collect()
}

/// Returns the declaration at the begin of `rest`, the text after a comment. Returns `None` if it declares no
/// function. The declaration of an inline function ends before its body.
fn prototype(rest: &str) -> Option<&str> {
    if rest.starts_with("static inline ") {
        return rest.split_once("\n{").map(|(declaration, _)| declaration);
    }
    let end = rest.find(';')? + 1;
    let declaration = rest[..end].trim();
    let is_function = declaration.contains("wedjat_") && declaration.ends_with(");");
    let is_other = declaration.contains('{')
        || declaration.starts_with('#')
        || declaration.starts_with("typedef");
    (is_function && !is_other).then_some(declaration)
}

/// Returns the name of a declared function.
fn name(prototype: &str) -> &str {
    let before = prototype.split('(').next().unwrap_or_default();
    before.rsplit([' ', '*']).next().unwrap_or_default()
}

/// Returns the page of a function in troff. `comment` is its comment in the header, `version` that of the package,
/// and `codes` has the meaning of each error code.
fn page(
    name: &str,
    prototype: &str,
    comment: &str,
    version: &str,
    codes: &BTreeMap<&str, String>,
) -> String {
    let mut parts = comment.split("# ");
    let description = parts.next().unwrap_or_default();
    let sections: BTreeMap<&str, &str> = parts
        .map(|section| section.split_once('\n').unwrap_or((section, "")))
        .map(|(head, body)| (head.trim(), body))
        .collect();
    let (description, return_value) = match sections.get("Return value") {
        Some(return_value) => (description.to_owned(), (*return_value).to_owned()),
        None => split_returns(description),
    };
    // The first sentence is the page's title.
    let brief = description.split(". ").next().and_then(|text| text.split("\n\n").next());
    let brief = text(brief.unwrap_or_default());
    let mut page = format!(
        ".TH {name} 3 \"\" \"wedjat {version}\"\n.SH NAME\n{name} \\- {}\n.SH SYNOPSIS\n.nf\n#include <wedjat.h>\n.PP\n{}\n.fi\n\
         .SH DESCRIPTION\n{}\n.SH RETURN VALUE\n{}\n.SH ERRORS\n{}\n",
        brief.trim_end_matches(['.', '\n']).replace('\n', " "),
        prototype.replace('\\', "\\e"),
        text(&description),
        text(&return_value),
        errors(prototype, comment, sections.get("Errors").copied().unwrap_or_default(), codes),
    );
    if let Some(body) = sections.get("Called from") {
        page += &format!(".SH CALLED FROM\n{}\n", text(body));
    }
    if let Some(body) = sections.get("Safety") {
        page +=
            &format!(".SH CAVEATS\nRequirements that the call does not check:\n{}\n", text(body));
    }
    page + ".SH SEE ALSO\n.BR wedjat (1),\n.BR wedjat_error_message (3),\n.BR wedjat_errno (3),\n.BR wedjat.toml (5),\nand the header wedjat.h\n"
}

/// Splits a description without the heading `Return value`, because each page has a section with that name. Returns the
/// text without the sentences that begin with "Returns", and these sentences without that word. Without such a
/// sentence, the first one describes the value, too.
fn split_returns(description: &str) -> (String, String) {
    let (mut rest, mut values) = (Vec::new(), Vec::new());
    for paragraph in description.trim().split("\n\n") {
        let paragraph = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut other_sentences = Vec::new();
        for sentence in paragraph.split(". ") {
            let sentence = format!("{}.", sentence.trim_end_matches('.'));
            match sentence.strip_prefix("Returns ") {
                Some(value) => {
                    let mut letters = value.chars();
                    let first = letters.next().into_iter().flat_map(char::to_uppercase);
                    values.push(first.chain(letters).collect());
                }
                None => other_sentences.push(sentence),
            }
        }
        rest.push(other_sentences.join(" "));
    }
    let rest: Vec<_> = rest.into_iter().filter(|paragraph| !paragraph.is_empty()).collect();
    if values.is_empty() {
        let first = rest.first().map_or("", String::as_str);
        values.push(first.split_inclusive(". ").next().unwrap_or_default().to_owned());
    }
    (rest.join("\n\n"), values.join(" "))
}

/// Lists the codes that a function may return: those of its arguments' checks, and those named in its
/// comment. The function's section `Errors` may describe a code more closely.
fn errors(prototype: &str, comment: &str, section: &str, codes: &BTreeMap<&str, String>) -> String {
    let section: BTreeMap<&str, &str> =
        section.lines().filter_map(|line| line.trim().split_once(": ")).collect();
    // Tells whether an argument has this type. A pointer to such a pointer receives a result and is no handle.
    let has = |what: &str| {
        prototype.match_indices(what).any(|(at, _)| !prototype[at + what.len()..].starts_with('*'))
    };
    let is_handle = has("struct wedjat_scheduler *") || has("struct wedjat_worker *");
    let is_of_core = has("struct wedjat_context *") || has("struct wedjat_picker *");
    // One call at a time may use such a handle.
    let is_exclusive = is_of_core || has("struct wedjat_worker *");
    let returns_codes = prototype.starts_with("int32_t") && (is_handle || comment.contains("code"));
    // wedjat_errno() takes a code and returns a number of errno.h.
    if !returns_codes || name(prototype) == "wedjat_errno" {
        return "None.".to_owned();
    }
    // Tells whether the comment names the code, and not only a longer code that begins with it.
    let is_mentioned = |code: &str| {
        comment.match_indices(code).any(|(at, _)| {
            !comment[at + code.len()..]
                .starts_with(|next: char| next == '_' || next.is_ascii_uppercase())
        })
    };
    // Tells whether a check of the arguments may return the code. The prototype tells which checks a call makes.
    let may_be = |code: &str| match code {
        "WEDJAT_ERROR_NULL" | "WEDJAT_ERROR_DEFECT" => is_handle || prototype.contains("**"),
        "WEDJAT_ERROR_HANDLE" => is_handle,
        "WEDJAT_ERROR_CONTEXT" => is_of_core,
        "WEDJAT_ERROR_BUSY" => is_exclusive,
        "WEDJAT_ERROR_ALIGNMENT" => {
            // Bytes need no alignment, and handles have a code of their own. A call has one handle (scheduler or
            // worker), and may have one of a core besides.
            let pointers = prototype.matches('*').count();
            let bytes =
                prototype.matches("char *").count() + prototype.matches("uint8_t *").count();
            pointers > bytes + usize::from(is_handle) + usize::from(is_of_core)
        }
        // A call with a port takes the burst of packets that the port received.
        "WEDJAT_ERROR_PORT" => prototype.contains("uint32_t port"),
        "WEDJAT_ERROR_BURST" => prototype.contains("uint32_t port"),
        _ => false,
    };
    let listed = codes.iter().filter(|(code, _)| may_be(code) || is_mentioned(code));
    let entry = |(code, meaning): (&&str, &String)| {
        let errno = meaning.find(" As errno").map_or("", |at| &meaning[at..]);
        let meaning = section.get(*code).map_or(meaning.clone(), |section| text(section) + errno);
        format!(".TP\n.B {code}\n{meaning}")
    };
    listed.map(entry).collect::<Vec<_>>().join("\n")
}

/// Converts prose to troff. An empty line becomes a new paragraph. No other line begins with a request (`.` or
/// `'`): `\&` in front of it, a character without width, prevents that.
fn text(prose: &str) -> String {
    let lines = prose.trim().lines().map(|line| match line.trim() {
        "" => ".PP".to_owned(),
        line => {
            let line = line.replace('\\', "\\e").replace('`', "");
            if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}
