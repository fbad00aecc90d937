//! Parsers for the promises of SPECIFICATION.md and for marks. A mark is a line above a test with the ids of the
//! promises that the test shows. tests/tidy.rs checks that each promise has a test or a `make` target.

use super::prose;

/// Beginning of a mark. The ids follow, with commas between them.
pub const MARK: &str = "// promise: ";

/// A promise: a list item of the specification with an id.
#[derive(Debug, PartialEq, Eq)]
pub struct Promise {
    /// Group and number, as in "packets.1".
    pub id: String,
    /// Text behind the id, on one line.
    pub text: String,
}

/// A test and the ids of its mark.
#[derive(Debug, PartialEq, Eq)]
pub struct MarkedTest {
    /// Name of the test's function.
    pub name: String,
    /// Ids of the promises that the test shows.
    pub ids: Vec<String>,
}

/// Returns the promises of the specification: list items that begin with an id in backquotes.
pub fn promises(specification: &str) -> Vec<Promise> {
    let mut found: Vec<Promise> = Vec::new();
    for line in specification.lines() {
        if let Some((id, text)) = line.strip_prefix("- `").and_then(|item| item.split_once('`')) {
            found.push(Promise { id: id.to_owned(), text: text.trim().to_owned() });
        } else if let (Some(text), Some(promise)) = (line.strip_prefix("  "), found.last_mut()) {
            promise.text.push(' ');
            promise.text.push_str(text);
        }
    }
    found
}

/// Returns the tests of a source file that have a mark. A marked `main` counts as a test: it is the test of a program
/// without a harness.
///
/// # Errors
/// Line number and text of the first mark without a test below it.
pub fn marked_tests(source: &str) -> Result<Vec<MarkedTest>, String> {
    let lines: Vec<_> = source.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, mark) in lines.iter().enumerate() {
        let Some(ids) = mark.strip_prefix(MARK) else { continue };
        let below = lines[at + 1..].iter();
        // Lines between the mark and the function's line. An empty line or another mark ends them.
        let attributes =
            below.clone().take_while(|line| !line.is_empty() && !line.starts_with(MARK));
        let attributes: Vec<_> =
            attributes.take_while(|line| prose::function_name(line).is_none()).collect();
        let name = below.skip(attributes.len()).find_map(|line| prose::function_name(line));
        let is_test = attributes.iter().any(|line| prose::is_test_attribute(line));
        match name {
            Some(name) if is_test || name == "main" => found.push(MarkedTest {
                name: name.to_owned(),
                ids: ids.split(',').map(|id| id.trim().to_owned()).collect(),
            }),
            _ => return Err(format!("line {}: {mark}", at + 1)),
        }
    }
    Ok(found)
}

mod tests {
    use super::*;

    // promise: sources.1
    #[test]
    fn marks_of_tests_and_programs_are_found() {
        let source = [
            "/// Notes.",
            "// promise: packets.1, input.2",
            "#[test]",
            "// note",
            "#[allow(",
            "    unused",
            ")]",
            "fn a_b() {}",
            "// promise: ports.1",
            "fn main() {",
            "    // promise: agent.1",
            "    #[tokio::test(flavor = \"x\")]",
            "    async fn c() {}",
        ];
        let found: Vec<_> = marked_tests(&source.join("\n"))
            .unwrap()
            .into_iter()
            .map(|test| format!("{}: {}", test.name, test.ids.join(" ")))
            .collect();
        assert_eq!(found, ["a_b: packets.1 input.2", "main: ports.1", "c: agent.1"]);
    }

    // promise: sources.1
    #[test]
    fn mark_without_a_test_is_refused() {
        let mark = "// promise: packets.1\n";
        for below in ["fn helper() {}\n", "\n#[test]\nfn a() {}\n", "#[test]\n", ""] {
            let source = format!("{mark}{below}");
            assert_eq!(marked_tests(&source), Err(format!("line 1: {}", mark.trim())), "{below}");
        }
        let twice = format!("{mark}{mark}#[test]\nfn a() {{}}\n");
        assert_eq!(marked_tests(&twice), Err(format!("line 1: {}", mark.trim())));
    }

    // promise: sources.1
    #[test]
    fn promises_are_list_items_with_ids() {
        let text =
            "- `packets.1` No panic,\n  ever (`make x`).\n\n- other\n| `a` |\n- `input.1` B.\n";
        let found: Vec<_> =
            promises(text).into_iter().map(|promise| (promise.id, promise.text)).collect();
        let expected = [("packets.1", "No panic, ever (`make x`)."), ("input.1", "B.")];
        assert_eq!(found, expected.map(|(id, text)| (id.to_owned(), text.to_owned())));
    }
}
