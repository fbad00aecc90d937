//! Measures of the English in comments, and extraction of the names of tests and types.
//!
//! A comment block is a run of comment lines of one file. Four numbers describe a folder. The first is the share of
//! blocks with a clause at the start. The second is the number of subordinating words a sentence. The third is the
//! share of sentences with three or more of them, and the last the share of sentences with an odd phrase. The limits
//! are in tests/tidy.rs. They are necessary, not sufficient: a bad comment can meet them, too.

use super::promises;

/// Words that begin a clause. A comment begins with a noun or a verb instead.
const CLAUSE_STARTS: [&str; 14] = [
    "what", "who", "whom", "whose", "whoever", "whatever", "how", "where", "whether", "those",
    "as", "so", "of", "that",
];

/// Words that begin a subordinate clause. Many of them make a sentence hard to read.
const SUBORDINATING: [&str; 23] = [
    "that",
    "which",
    "who",
    "whom",
    "whose",
    "what",
    "where",
    "whether",
    "whoever",
    "whatever",
    "when",
    "while",
    "unless",
    "until",
    "since",
    "because",
    "if",
    "though",
    "than",
    "as",
    "whence",
    "wherever",
    "whichever",
];

/// Odd phrases: vague or archaic words that no engineer of the field would search for.
const ODD_PHRASES: [&str; 45] = [
    "whoever",
    "whomever",
    "whom",
    "whatsoever",
    "what there is",
    "what is there",
    "is to be",
    "are to be",
    "but for",
    "so many",
    "so much",
    "so long",
    "such a one",
    "hear of",
    "hears of",
    "is told",
    "are told",
    "tell of",
    "tells of",
    "told of",
    "told by",
    "goes by",
    "go by",
    "by whom",
    "nobody",
    "somebody",
    "everybody",
    "who know",
    "who knows",
    "the other",
    "the others",
    "that there is",
    "that there are",
    "there may be",
    "or is not",
    "as it is",
    "as they are",
    "alike",
    "nothing but",
    "mutely",
    "is heard of",
    "are heard of",
    "stands still",
    "stand still",
    "anew",
];

/// Names that no type may have: participles, pronouns, question words, and words that name no thing of the field.
pub const FORBIDDEN_TYPES: [&str; 122] = [
    "About",
    "Accepted",
    "Announced",
    "Around",
    "Ask",
    "Asked",
    "Asking",
    "Asks",
    "Assembled",
    "Attended",
    "Both",
    "Built",
    "Came",
    "Captured",
    "Changed",
    "Changing",
    "Collected",
    "Controlled",
    "Copied",
    "Counted",
    "Counting",
    "Deed",
    "Dispatched",
    "Done",
    "Driven",
    "Due",
    "Either",
    "Ended",
    "Entered",
    "Expected",
    "Explained",
    "Explaining",
    "Finished",
    "Followed",
    "Following",
    "Follows",
    "Forgotten",
    "Found",
    "Gathered",
    "Given",
    "Gone",
    "Happening",
    "Heard",
    "Hearing",
    "Held",
    "Hired",
    "Inside",
    "Kept",
    "Killed",
    "Learned",
    "Learnt",
    "Leaving",
    "Left",
    "Logged",
    "Looked",
    "Made",
    "Measured",
    "Named",
    "Newcomer",
    "Next",
    "Nobody",
    "Nothing",
    "Notified",
    "Of",
    "Off",
    "Offered",
    "Opened",
    "Other",
    "Others",
    "Otherwise",
    "Outside",
    "Own",
    "Owned",
    "Passed",
    "Placed",
    "Planned",
    "Planted",
    "Polled",
    "Prepared",
    "Queued",
    "Ran",
    "Reached",
    "Received",
    "Refused",
    "Released",
    "Reloaded",
    "Replayed",
    "Running",
    "Said",
    "Seen",
    "Sends",
    "Served",
    "Serving",
    "Shown",
    "Shows",
    "Signed",
    "Spent",
    "Staged",
    "Swept",
    "Taken",
    "Through",
    "Timed",
    "Told",
    "Took",
    "Touched",
    "Unfinished",
    "Used",
    "Via",
    "Waited",
    "Waiting",
    "Watched",
    "Watching",
    "Ways",
    "What",
    "Whence",
    "Where",
    "Who",
    "Whose",
    "Why",
    "Word",
    "Words",
    "Wrong",
];

/// Measures of the comments of some files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prose {
    /// Number of comment blocks.
    pub blocks: usize,
    /// Blocks that begin with a clause.
    pub clause_starts: usize,
    /// Number of sentences.
    pub sentences: usize,
    /// Subordinating words in all sentences.
    pub subordinating: usize,
    /// Sentences with three or more subordinating words.
    pub nested: usize,
    /// Sentences with an odd phrase.
    pub odd: usize,
}

impl std::ops::AddAssign for Prose {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.clause_starts += other.clause_starts;
        self.sentences += other.sentences;
        self.subordinating += other.subordinating;
        self.nested += other.nested;
        self.odd += other.odd;
    }
}

impl Prose {
    /// Measures the comments of one source file.
    pub fn of(source: &str) -> Self {
        let mut prose = Self::default();
        comment_blocks(source).iter().for_each(|block| prose.add_block(block));
        prose
    }

    /// Adds the measures of a comment block.
    fn add_block(&mut self, block: &str) {
        self.blocks += 1;
        let first = words(block).next().unwrap_or_default();
        self.clause_starts += usize::from(CLAUSE_STARTS.contains(&first.as_str()));
        for sentence in sentences(block) {
            let words: Vec<_> = words(&sentence).collect();
            let clauses =
                words.iter().filter(|word| SUBORDINATING.contains(&word.as_str())).count();
            let text = format!(" {} ", words.join(" "));
            let is_odd = ODD_PHRASES.iter().any(|phrase| text.contains(&format!(" {phrase} ")));
            self.sentences += 1;
            self.subordinating += clauses;
            self.nested += usize::from(clauses >= 3);
            self.odd += usize::from(is_odd);
        }
    }

    /// Returns per thousand: blocks that begin with a clause, subordinating words a sentence, nested sentences, odd
    /// sentences.
    pub fn per_thousand(&self) -> [usize; 4] {
        let share = |count: usize, total: usize| count * 1000 / total.max(1);
        [
            share(self.clause_starts, self.blocks),
            share(self.subordinating, self.sentences),
            share(self.nested, self.sentences),
            share(self.odd, self.sentences),
        ]
    }
}

/// Returns the comment blocks of a source file, each as one line of text. Reads only comments on lines of their own:
/// those that begin with `//`, and those in `/* */` of C. Leaves out fenced code, headings, tables and marks of
/// promises.
fn comment_blocks(source: &str) -> Vec<String> {
    let (mut blocks, mut block, mut is_fenced) = (Vec::new(), String::new(), false);
    let mut is_in_c = false;
    let mut end = |block: &mut String| {
        if !block.is_empty() {
            blocks.push(std::mem::take(block));
        }
    };
    for line in source.lines().map(str::trim_start) {
        if line.starts_with(promises::MARK) {
            continue;
        }
        let text = ["///", "//!", "//"].iter().find_map(|marker| line.strip_prefix(marker));
        let text = text.or_else(|| c_comment(line, &mut is_in_c));
        let Some(text) = text.map(str::trim) else {
            is_fenced = false;
            end(&mut block);
            continue;
        };
        if text.starts_with("```") {
            is_fenced = !is_fenced;
        }
        if is_fenced || text.is_empty() || text.starts_with(['#', '|']) || text.starts_with("```") {
            end(&mut block);
        } else {
            if !block.is_empty() {
                block.push(' ');
            }
            block.push_str(text);
        }
    }
    end(&mut block);
    blocks
}

/// Returns the text of a line in a comment of C, without its marks; `None` for other lines. `is_in_c` is true if the
/// comment began on an earlier line.
fn c_comment<'a>(line: &'a str, is_in_c: &mut bool) -> Option<&'a str> {
    let text = match line.strip_prefix("/*") {
        Some(text) => text,
        None if *is_in_c => line,
        None => return None,
    };
    let (text, has_end) = text.split_once("*/").map_or((text, false), |(text, _)| (text, true));
    *is_in_c = !has_end;
    Some(text.trim_start_matches('*'))
}

/// Returns the sentences of a block with three words or more; code in backquotes counts as one word. A sentence also
/// ends at a colon or semicolon.
fn sentences(block: &str) -> Vec<String> {
    let text: String = block
        .split('`')
        .enumerate()
        .map(|(at, part)| if at % 2 == 0 { part } else { "X" })
        .collect();
    let (mut found, mut sentence) = (Vec::new(), String::new());
    for word in text.split_whitespace() {
        sentence.push_str(word);
        sentence.push(' ');
        if word.ends_with(['.', '!', '?', ':', ';']) {
            found.push(std::mem::take(&mut sentence));
        }
    }
    found.push(sentence);
    found.retain(|sentence| sentence.split_whitespace().count() > 2);
    found
}

/// Returns the words in lower case, without punctuation.
fn words(text: &str) -> impl Iterator<Item = String> {
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '\'' || letter == '_';
    text.split(move |letter| !is_letter(letter))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

/// Returns true for an attribute that makes a function a test.
pub fn is_test_attribute(line: &str) -> bool {
    line.starts_with("#[test]") || line.starts_with("#[tokio::test")
}

/// Returns the name of the function that a line begins, if the line starts with `fn` or `async fn`. Test functions do:
/// they have no `pub`.
pub fn function_name(line: &str) -> Option<&str> {
    line.trim_start_matches("async ").strip_prefix("fn ")?.split(['(', '<']).next()
}

/// Returns the names of the test functions of a source file.
pub fn test_names(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        if is_test_attribute(line) {
            is_test = true;
        } else if let Some(name) = function_name(line) {
            if std::mem::take(&mut is_test) {
                found.push(name.to_owned());
            }
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            is_test = false;
        }
    }
    found
}

/// Returns the names of the types that a source file defines.
pub fn type_names(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in source.lines().map(str::trim) {
        let mut words =
            line.split([' ', '<', '(', '{', ';', ':', '=']).filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            match word {
                "struct" | "enum" | "trait" | "union" | "type" => {
                    found.extend(words.next().map(str::to_owned));
                    break;
                }
                "pub" | "crate)" | "super)" | "in" | "unsafe" => {}
                _ => break,
            }
        }
    }
    found
}

mod tests {
    use super::*;

    #[test]
    fn clauses_and_odd_phrases_are_counted() {
        let source = "/// What a core tells the others, as it is told.\nfn a() {}\n/// Returns the load of a worker.\n\
            fn b() {}\n// The task waits: it goes when the worker that has it, which is slow, is there.\n";
        let prose = Prose::of(source);
        // Subordinating words: "what" and "as" in the first comment, and three in the last sentence. Odd phrases:
        // only in the first comment.
        let expected = Prose {
            blocks: 3,
            clause_starts: 1,
            sentences: 4,
            subordinating: 5,
            nested: 1,
            odd: 1,
        };
        assert_eq!(prose, expected);
        assert_eq!(prose.per_thousand(), [333, 1250, 250, 250]);
    }

    #[test]
    fn comments_of_c_are_read() {
        let source = "/* Returns the sum.\n * What is it? */\nint a; /* what, who, whose */\n/** Adds two. */\n";
        assert_eq!(comment_blocks(source), ["Returns the sum. What is it?", "Adds two."]);
    }

    #[test]
    fn code_and_tables_in_comments_are_skipped() {
        let source = "/// # What is\n/// ```\n/// what who whose\n/// ```\n/// | what | who |\n// promise: what.1, who.2\nfn a() {}\n";
        assert_eq!(Prose::of(source), Prose::default());
    }

    #[test]
    fn names_of_tests_and_types_are_found() {
        let source = "#[test]\n#[should_panic]\nfn pool_is_empty() {}\nfn helper() {}\npub(crate) struct Told<T>(T);\n\
            enum Fate {}\n// struct Comment;\n#[tokio::test]\nasync fn leaf_ends() {}\n";
        assert_eq!(test_names(source), ["pool_is_empty", "leaf_ends"]);
        assert_eq!(type_names(source), ["Told", "Fate"]);
    }
}
