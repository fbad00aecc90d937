//! Reader of a file's tables: compares the keys and types with [`SECTIONS`], and keeps the values for the checks.
//!
//! Reading has two steps. This one needs only the table of keys: it refuses unknown and missing keys, wrong types and
//! unknown words. The checks of each kind of file then look at ranges, addresses and relations between values.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::de::value::{Error, StrDeserializer};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};
use wedjat_core::nearest::did_you_mean;
use wedjat_core::policy::Reports;
use wedjat_core::stage::{IpOptions, Side};

use super::fault::{ConfigFault, Lines};
use super::keys::{DefaultValue, Key, Kind, REFUSED, SECTIONS, Section};
use crate::state::ReplyPath;

/// Tables of a file, with keys and types as [`SECTIONS`] has them. Most ranges are unchecked.
pub struct File {
    tables: Vec<TableOfFile>,
}

/// Number of a table in its file, from 0. Checks read the table's keys by name with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table(usize);

/// Table of a file.
pub struct TableOfFile {
    /// Its section.
    pub section: &'static Section,
    /// Number in its section, from 0.
    pub index: usize,
    /// Keys of other files, which the reader accepts here because a check refuses them, or warns of them, with a better
    /// message.
    refused: &'static [Key],
    /// Offset of the table in the text.
    start: usize,
    /// Values of its keys.
    pub values: BTreeMap<&'static str, Spanned<Item>>,
}

/// Value of a key, of any type.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// Whole number.
    Integer(i64),
    /// Other number.
    Number(f64),
    /// `true` or `false`.
    Flag(bool),
    /// Text.
    Text(String),
    /// List of texts, also an empty list.
    Texts(Vec<Spanned<String>>),
    /// List of whole numbers.
    Integers(Vec<i64>),
    /// Table of numbers.
    Numbers(BTreeMap<String, f64>),
    /// Any other value, as a text: a date, a mixed list, another table, or a number that is too large. The reader
    /// refuses it for each key.
    Other(String),
}

/// Formats a value in its canonical form, which a reload compares. Texts in lists keep their quotes, so that two lists
/// differ if their items do.
impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Flag(is_set) => is_set.fmt(f),
            Self::Text(text) | Self::Other(text) => f.write_str(text),
            Self::Texts(list) => f.debug_list().entries(list.iter().map(Spanned::get_ref)).finish(),
            Self::Integers(list) => f.debug_list().entries(list).finish(),
            Self::Numbers(table) => f.debug_map().entries(table).finish(),
        }
    }
}

/// Conversion of a key's value to a Rust type.
pub trait FromItem: Sized {
    /// Returns the value, if it has this type.
    fn from_item(item: &Item) -> Option<Self>;
}

/// Implements [`FromItem`] for the types of some items.
macro_rules! from_item {
    ($($type:ty: $pattern:pat => $value:expr,)*) => {
        $(impl FromItem for $type {
            fn from_item(item: &Item) -> Option<Self> {
                match item {
                    $pattern => $value,
                    _ => None,
                }
            }
        })*
    };
}

from_item! {
    i64: Item::Integer(number) => Some(*number),
    u16: Item::Integer(number) => (*number).try_into().ok(),
    bool: Item::Flag(is_set) => Some(*is_set),
    String: Item::Text(text) => Some(text.clone()),
    Vec<Spanned<String>>: Item::Texts(list) => Some(list.clone()),
    BTreeMap<String, f64>: Item::Numbers(table) => Some(table.clone()),
    Side: Item::Text(text) => word(text),
    IpOptions: Item::Text(text) => word(text),
    Reports: Item::Text(text) => word(text),
    ReplyPath: Item::Text(text) => word(text),
}

/// A whole number is a number, too.
impl FromItem for f64 {
    fn from_item(item: &Item) -> Option<Self> {
        match item {
            Item::Number(number) => Some(*number),
            Item::Integer(number) => Some(*number as Self),
            _ => None,
        }
    }
}

/// An empty list is read as a list of texts.
impl FromItem for Vec<usize> {
    fn from_item(item: &Item) -> Option<Self> {
        match item {
            Item::Integers(list) => list.iter().map(|&number| number.try_into().ok()).collect(),
            Item::Texts(list) if list.is_empty() => Some(Self::new()),
            _ => None,
        }
    }
}

/// Returns the value of an enum that a word of the file stands for; `None` for an unknown word.
pub fn word<T: DeserializeOwned>(word: &str) -> Option<T> {
    T::deserialize(StrDeserializer::<Error>::new(word)).ok()
}

/// Field of an `entry!`: `Spanned` for a key that a file must have, `Option<Spanned>` for one that it may have.
pub trait Field {
    /// Creates the field from the file's value; `None` if the file lacks the key.
    fn of(found: Option<&Spanned<Item>>) -> Self;
}

/// A key that a file may have.
impl<T: FromItem> Field for Option<Spanned<T>> {
    fn of(found: Option<&Spanned<Item>>) -> Self {
        let found = found?;
        Some(Spanned::new(found.span(), T::from_item(found.get_ref())?))
    }
}

/// A key that a file must have. The reader has refused files without it.
impl<T: FromItem> Field for Spanned<T> {
    fn of(found: Option<&Spanned<Item>>) -> Self {
        Option::of(found).expect("the file has each required key, with its type")
    }
}

/// Defines a type for an entry of a file: the values of some of its keys with their places. Each field has the name of
/// its key. The type's `of` reads a table of the file.
macro_rules! entry {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        pub struct $name {
            #[allow(dead_code, reason = "not every entry has keys that are read by name")]
            pub table: Table,
            $($(#[$about])* pub $field: $type,)*
        }

        impl $name {
            /// Returns the values of a table.
            pub fn of(file: &$crate::config::read::File, table: Table) -> Self {
                Self { table, $($field: file.field(table, (stringify!($name), stringify!($field))),)* }
            }
        }
    };
}
pub(super) use entry;

impl File {
    /// Reads a file of `owner`: leaf, spine, agent or controller.
    ///
    /// # Errors
    /// If the text is not TOML. Otherwise if it has unknown keys, lacks keys, or has values of wrong types or unknown
    /// words; the error then holds these faults in order of lines. Missing keys of a table that has unknown keys
    /// are not among them.
    pub fn read(owner: &'static str, text: &str) -> Result<Self, Vec<ConfigFault>> {
        let root = DeTable::parse(text).map_err(|error| vec![syntax_fault(&error, text)])?;
        let mut reader =
            TypeReader { lines: Lines::of(text), faults: Vec::new(), tables: Vec::new(), owner };
        reader.table((None, ""), 0, root.span().start, root.get_ref());
        let TypeReader { mut faults, tables, .. } = reader;
        faults.sort_by_key(|fault| fault.line);
        if faults.is_empty() { Ok(Self { tables }) } else { Err(faults) }
    }

    /// Returns the tables with their numbers.
    pub fn tables(&self) -> impl Iterator<Item = (Table, &TableOfFile)> {
        self.tables.iter().enumerate().map(|(index, table)| (Table(index), table))
    }

    /// Returns the tables of a section.
    pub fn of_section(&self, name: &str) -> impl Iterator<Item = Table> {
        self.tables().filter(move |(_, one)| one.section.name == name).map(|(table, _)| table)
    }

    /// Returns all entries of a section; `of` reads one.
    pub fn entries<T>(&self, section: &str, of: impl Fn(&Self, Table) -> T) -> Vec<T> {
        self.of_section(section).map(|table| of(self, table)).collect()
    }

    /// Returns the value of a key.
    pub fn value<T: Field>(&self, table: Table, name: &str) -> T {
        T::of(self.key(table, name).2)
    }

    /// Returns the value of an `entry!`'s field, named by the entry and the field. A section may lack keys that other
    /// sections of the entry have.
    ///
    /// # Panics
    /// If no section of this name, or of its last part, has such a key: the field is misspelt.
    pub fn field<T: Field>(&self, table: Table, (entry, field): (&str, &str)) -> T {
        let TableOfFile { section, values, .. } = &self.tables[table.0];
        let sections = || SECTIONS.iter().filter(|other| section.name.ends_with(other.name));
        let keys = || sections().flat_map(Section::keys).map(|key| key.name);
        let is_known = keys().any(|key| key == field);
        assert!(is_known, "entry {entry}: key `{field}` is none of {:?}", Vec::from_iter(keys()));
        T::of(values.get(field))
    }

    /// Returns the place of a table.
    #[allow(dead_code, reason = "only a build without batch jobs uses it")]
    pub fn place(&self, table: Table) -> Spanned<()> {
        let start = self.tables[table.0].start;
        Spanned::new(start..start, ())
    }

    /// Returns the only table of the owner's section, as `[leaf]` of a leaf's file. The reader refuses a file without
    /// it.
    pub fn only(&self, name: &str) -> Table {
        self.of_section(name).next().unwrap_or_default()
    }

    /// Returns a key's row in [`SECTIONS`], its full name, as in `leaf.cores`, and its value in the file.
    ///
    /// # Panics
    /// If the section has no such key.
    pub fn key(&self, table: Table, name: &str) -> (&'static Key, String, Option<&Spanned<Item>>) {
        let TableOfFile { section, refused, values, .. } = &self.tables[table.0];
        let mut keys = section.keys().chain(*refused);
        let key = keys.find(|key| key.name == name);
        let key = key.unwrap_or_else(|| panic!("{} has no key {name}", section.header()));
        (key, format!("{}.{name}", section.name), values.get(name))
    }
}

/// Returns the keys of other files that a check refuses in this section, or warns of, with a reason of its own.
fn refused_keys(owner: &str, section: &Section) -> &'static [Key] {
    let header = section.header();
    let found = REFUSED.iter().find(|one| (one.0, one.1) == (owner, &header[..]));
    found.map_or(&[], |(_, _, keys)| keys)
}

/// Reader of names and types, with the tables and faults so far.
struct TypeReader {
    /// Owner of the file: leaf, spine, agent or controller.
    owner: &'static str,
    lines: Lines,
    faults: Vec<ConfigFault>,
    tables: Vec<TableOfFile>,
}

impl TypeReader {
    /// Adds a fault at an offset in the text.
    fn note(&mut self, offset: usize, key: &str, found: String, allowed: &str) {
        let (line, key, allowed) = (self.lines.at(offset), key.to_owned(), allowed.to_owned());
        self.faults.push(ConfigFault { line, key, found, allowed });
    }

    /// Reads the file, or a table with its subtables. The file itself has no section and an empty `path`. `index` is
    /// the table's number in its section, `start` its offset in the text.
    fn table(
        &mut self,
        (section, path): (Option<&'static Section>, &str),
        index: usize,
        start: usize,
        table: &DeTable<'_>,
    ) {
        // Parent and last part of a section's name.
        let split = |name: &'static str| name.rsplit_once('.').unwrap_or(("", name));
        let subsections: Vec<_> = SECTIONS
            .iter()
            .filter(|one| one.files.contains(&self.owner) && split(one.name).0 == path)
            .collect();
        let mut keys: Vec<_> = section.into_iter().flat_map(Section::keys).collect();
        // A check refuses the keys behind these, or warns of them. Messages do not name them as allowed.
        let documented = keys.len();
        let refused = section.map_or(&[][..], |section| refused_keys(self.owner, section));
        keys.extend(refused);
        let full_name = |name: &str| format!("{path}.{name}").trim_start_matches('.').to_owned();
        let (mut values, mut is_known) = (BTreeMap::new(), true);
        for (name, value) in table {
            let (offset, name) = (name.span().start, &name.get_ref()[..]);
            if let Some(key) = keys.iter().find(|key| key.name == name) {
                if let Some(item) = self.value(key.kind, &full_name(name), value) {
                    values.insert(key.name, Spanned::new(value.span(), item));
                }
            } else if let Some(one) = subsections.iter().find(|one| split(one.name).1 == name) {
                self.subtables(one, value);
            } else {
                let names = keys[..documented].iter().map(|key| key.name);
                let names: Vec<_> =
                    names.chain(subsections.iter().map(|one| split(one.name).1)).collect();
                let suggestion = did_you_mean(name, names.iter().copied());
                let found = format!("the unknown key `{name}`{suggestion}");
                self.note(offset, &full_name(name), found, &choice(&names));
                is_known = false;
            }
        }
        let needed = keys[..documented].iter().filter(|key| key.default == DefaultValue::Required);
        let needed = needed.map(|key| key.name);
        // A file needs the section of its owner, as a leaf's file needs `[leaf]`.
        let own_section = subsections.iter().find(|one| one.name == self.owner && !one.is_list);
        for name in needed.chain(own_section.map(|one| one.name)) {
            // An unknown key may be a misspelt one of these, so the table then has no faults of missing keys.
            if is_known && !table.contains_key(name) {
                let allowed = format!("the key `{name}`, which is needed");
                self.note(start, path, format!("no key `{name}`"), &allowed);
            }
        }
        if let Some(section) = section {
            self.tables.push(TableOfFile { section, index, refused, start, values });
        }
    }

    /// Reads the table, or the list of tables, of a section. Adds a fault for any other value.
    fn subtables(&mut self, section: &'static Section, value: &Spanned<DeValue<'_>>) {
        let subtable =
            |reader: &mut Self, index, value: &Spanned<DeValue<'_>>| match value.get_ref() {
                DeValue::Table(table) => {
                    let start = value.span().start;
                    reader.table((Some(section), section.name), index, start, table);
                }
                other => {
                    reader.note(value.span().start, section.name, found(other), "a table");
                }
            };
        match (section.is_list, value.get_ref()) {
            (false, _) => subtable(self, 0, value),
            (true, DeValue::Array(list)) => {
                list.iter().enumerate().for_each(|(index, value)| subtable(self, index, value));
            }
            (true, other) => self.note(value.span().start, section.name, found(other), "a list"),
        }
    }

    /// Returns the value of a key, never `None`. Adds a fault for another type, an unknown word, an id outside 0 to
    /// 65535, or a negative number in a list.
    fn value(&mut self, kind: Kind, key: &str, value: &Spanned<DeValue<'_>>) -> Option<Item> {
        let item = item(value.get_ref());
        // Adds the fault of a value of another type.
        let mut wrong = |at: &Spanned<DeValue<'_>>, allowed: &str| {
            self.note(at.span().start, key, found(at.get_ref()), allowed);
        };
        match (kind, &item, value.get_ref()) {
            (Kind::Integer(..) | Kind::Count(_), Item::Integer(_), _)
            | (Kind::Id(_), Item::Integer(0..=0xFFFF), _)
            | (Kind::Number(..) | Kind::Decimal(_), Item::Integer(_) | Item::Number(_), _)
            | (Kind::Flag, Item::Flag(_), _)
            | (Kind::Text(_), Item::Text(_), _) => {}
            (Kind::Word(words), Item::Text(text), _) => {
                if !words.contains(&&text[..]) {
                    let suggestion = did_you_mean(text, words.iter().copied());
                    let found = format!("`{text}`{suggestion}");
                    self.note(value.span().start, key, found, &choice(words));
                }
            }
            (Kind::Texts(_), _, DeValue::Array(list)) => {
                let is_wrong = |at: &&Spanned<_>| !matches!(at.get_ref(), DeValue::String(_));
                list.iter().filter(is_wrong).for_each(|at| wrong(at, "text in quotes"));
            }
            (Kind::Integers(_), _, DeValue::Array(list)) => {
                let is_wrong = |at: &&Spanned<DeValue<'_>>| {
                    !matches!(self::item(at.get_ref()), Item::Integer(0..))
                };
                list.iter().filter(is_wrong).for_each(|at| wrong(at, "a whole number from 0"));
            }
            (Kind::Numbers(_), _, DeValue::Table(table)) => {
                let is_wrong = |at: &&Spanned<DeValue<'_>>| {
                    !matches!(self::item(at.get_ref()), Item::Integer(_) | Item::Number(_))
                };
                table.values().filter(is_wrong).for_each(|at| wrong(at, "a number"));
            }
            _ => wrong(value, type_name(kind)),
        }
        Some(item)
    }
}

/// Names a type for users.
const fn type_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Integer(..) | Kind::Count(_) => "a whole number",
        Kind::Id(_) => "a whole number from 0 to 65535",
        Kind::Number(..) | Kind::Decimal(_) => "a number",
        Kind::Flag => "true or false",
        Kind::Word(_) | Kind::Text(_) => "text in quotes",
        Kind::Texts(_) | Kind::Integers(_) => "a list",
        Kind::Numbers(_) => "a table",
    }
}

/// Lists allowed names for a message.
fn choice(names: &[&str]) -> String {
    match names {
        [one, other] => format!("`{one}` or `{other}`"),
        names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

/// Describes a value of the wrong type: as the file has it, or as a list, a table or a date.
fn found(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::String(text) => format!("{text:?}"),
        other => item(other).to_string(),
    }
}

/// Returns a TOML value as an item; [`Item::Other`] for one that no key may have.
fn item(value: &DeValue<'_>) -> Item {
    match value {
        DeValue::String(text) => Item::Text(text.to_string()),
        DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix())
            .map_or_else(|_| Item::Other(digits.to_string()), Item::Integer),
        DeValue::Float(digits) => {
            digits.as_str().parse().map_or_else(|_| Item::Other(digits.to_string()), Item::Number)
        }
        DeValue::Boolean(is_set) => Item::Flag(*is_set),
        DeValue::Datetime(date) => Item::Other(date.to_string()),
        DeValue::Array(list) => {
            let items: Vec<_> =
                list.iter().map(|one| Spanned::new(one.span(), item(one.get_ref()))).collect();
            // A list has one type: all items are texts, or all are numbers.
            let text = |one: &Spanned<Item>| match one.get_ref() {
                Item::Text(text) => Some(Spanned::new(one.span(), text.clone())),
                _ => None,
            };
            let number = |one: &Spanned<Item>| i64::from_item(one.get_ref());
            let texts = items.iter().map(text).collect::<Option<_>>().map(Item::Texts);
            texts
                .or_else(|| items.iter().map(number).collect::<Option<_>>().map(Item::Integers))
                .unwrap_or_else(|| Item::Other("a list".to_owned()))
        }
        DeValue::Table(table) => {
            let number = |(name, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
                Some((name.get_ref().to_string(), f64::from_item(&item(value.get_ref()))?))
            };
            let numbers = table.iter().map(number).collect::<Option<_>>().map(Item::Numbers);
            numbers.unwrap_or_else(|| Item::Other("a table".to_owned()))
        }
    }
}

/// Returns the fault of a text that is not TOML.
fn syntax_fault(error: &toml::de::Error, text: &str) -> ConfigFault {
    let line = Lines::of(text).at(error.span().map_or(0, |span| span.start));
    // The parser's message may end in a list of expected characters or words.
    let message = error.message();
    let found = message.split(", expected ").next().unwrap_or_default();
    let found = found.split("\nexpected").next().unwrap_or_default();
    let expected = message.split_once("expected ");
    let allowed = expected.map_or("text in TOML's form", |(_, description)| description);
    let in_one_line = |text: &str| text.trim_end().replace('\n', ", ");
    ConfigFault {
        line,
        key: key_at(text, line),
        found: in_one_line(found),
        allowed: in_one_line(allowed),
    }
}

/// Returns the key that a line sets or continues, with the name of its table. Scans the text, because the parser names
/// no keys.
fn key_at(text: &str, line: usize) -> String {
    let mut table = "";
    let mut key = "";
    // Number of open brackets of a list that spans several lines. Brackets in texts, and in comments behind values,
    // count as well: the name of the key is only a hint.
    let mut open = 0_i32;
    for content in text.lines().take(line).map(str::trim) {
        if content.starts_with('#') {
            continue;
        }
        let is_continued = open > 0;
        open += content.matches('[').count() as i32 - content.matches(']').count() as i32;
        if is_continued {
            continue;
        }
        if content.starts_with('[') {
            table = content.split(']').next().unwrap_or_default().trim_matches('[').trim();
            (key, open) = ("", 0);
        } else {
            key = content.split_once('=').map_or("", |(key, _)| key.trim());
            open = open.max(0);
        }
    }
    match (table, key) {
        (table, "") => table.to_owned(),
        ("", key) => key.to_owned(),
        (table, key) => format!("{table}.{key}"),
    }
}
