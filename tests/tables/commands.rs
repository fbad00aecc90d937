//! Table of a program's commands for docs/reference/commands.md, from the clap definitions that parse its command line.
//! Tests of each program compare it with the document, so that the document stays complete.

mod table;

use clap::{Arg, Command};

/// Selection of the options in the table.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "each program uses one of them")]
pub enum Detail {
    /// All options.
    Options,
    /// Required options only.
    Needed,
}

/// Minimum number of options, shared by the same two or more commands, that get a row of their own.
const SHARED_MIN: usize = 4;

/// Compares the table below a heading of docs/reference/commands.md with the commands of a program. With
/// `Detail::Needed`, the table has only the required options.
pub fn assert_documented(heading: &str, program: &Command, detail: Detail) {
    let mut rows = Vec::new();
    add_rows(program, "", detail, &mut rows);
    let document = "docs/reference/commands.md";
    table::assert_table(document, heading, "| command | purpose |", rows.into_iter());
}

/// Adds a row for each command below `parent`. `path` is the prefix of their names: the command groups above them. A
/// group without arguments of its own has no row.
/// At least [`SHARED_MIN`] options of the same group of commands get one common row, before the rows of the commands.
fn add_rows(parent: &Command, path: &str, detail: Detail, rows: &mut Vec<String>) {
    let is_shown =
        |command: &&Command| !command.is_hide_set() && command.get_name() != "completions";
    let commands: Vec<_> = parent.get_subcommands().filter(is_shown).collect();
    // Names of the commands that have each option.
    let mut owners = Vec::<(String, Vec<&str>)>::new();
    for command in &commands {
        for option in options(command, detail) {
            match owners.iter_mut().find(|(known, _)| *known == option) {
                Some((_, names)) => names.push(command.get_name()),
                None => owners.push((option, vec![command.get_name()])),
            }
        }
    }
    // Options by the group of commands that share them.
    let mut shared = Vec::<(&[&str], Vec<&str>)>::new();
    for (option, names) in owners.iter().filter(|(_, names)| names.len() > 1) {
        match shared.iter_mut().find(|(known, _)| known == names) {
            Some((_, options)) => options.push(option),
            None => shared.push((names, vec![option])),
        }
    }
    shared.retain(|(_, options)| options.len() >= SHARED_MIN);
    for (names, options) in &shared {
        let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        rows.push(format!("| options of {names} | `{}` |\n", options.join(" ")));
    }
    for command in commands {
        let is_own =
            |option: &String| !shared.iter().any(|(_, shared)| shared.contains(&option.as_str()));
        let mut words = vec![format!("{path}{}", command.get_name())];
        words.extend(options(command, detail).into_iter().filter(is_own));
        words.extend(command.get_positionals().filter(|arg| !arg.is_hide_set()).map(positional));
        let purpose = command.get_about().map(ToString::to_string).unwrap_or_default();
        if words.len() > 1 || !command.has_subcommands() {
            rows.push(format!("| `{}` | {} |\n", words.join(" "), summary(&purpose)));
        }
        add_rows(command, &format!("{path}{} ", command.get_name()), detail, rows);
    }
}

/// Returns a command's options, the required ones first; with [`Detail::Needed`] only these.
fn options(command: &Command, detail: Detail) -> Vec<String> {
    let options = command.get_opts().filter(|arg| !arg.is_hide_set());
    let (needed, rest): (Vec<_>, Vec<_>) = options.partition(|arg| arg.is_required_set());
    let rest = rest.into_iter().filter(|_| detail == Detail::Options);
    let rest = rest.map(|arg| format!("[{}]", option(arg)));
    needed.into_iter().map(option).chain(rest).collect()
}

/// Returns an option with the name of its value, or with X if that name repeats the option's name.
fn option(arg: &Arg) -> String {
    let name = arg.get_long().unwrap_or_default();
    match value(arg) {
        _ if !arg.get_action().takes_values() => format!("--{name}"),
        value if value.to_lowercase().replace('_', "-") == name => format!("--{name} X"),
        value => format!("--{name} {value}"),
    }
}

/// Returns the name of a positional argument: in brackets if optional, after `--` if only valid there.
fn positional(arg: &Arg) -> String {
    let name = match arg.is_last_set() {
        true => format!("-- {}", value(arg)),
        false => value(arg),
    };
    if arg.is_required_set() { name } else { format!("[{name}]") }
}

/// Returns the name of an argument's value. Its default is the argument's name in capitals.
fn value(arg: &Arg) -> String {
    let names = arg.get_value_names().map(|names| names.join(" "));
    names.unwrap_or_else(|| arg.get_id().as_str().to_uppercase()).replace('|', "\\|")
}

/// Returns the first statement of a command's purpose. It ends at the first of the marks below.
fn summary(purpose: &str) -> &str {
    let ends = [". ", "; ", ": ", ", and ", ", which ", " until "];
    let end = ends.iter().filter_map(|mark| purpose.find(mark)).min();
    purpose[..end.unwrap_or(purpose.len())].trim_end_matches('.')
}
