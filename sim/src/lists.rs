//! Lists on the command line.

/// Splits at commas outside parentheses, because policies have parameters with commas. Trims the parts and leaves out
/// empty ones.
#[must_use]
pub fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    text.split(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
    .collect()
}

/// Like [`split`], but refuses an empty list. `flag` is the option's name in the error.
///
/// # Errors
/// If the list is empty.
pub fn list<'a>(flag: &str, text: &'a str) -> Result<Vec<&'a str>, String> {
    Some(split(text)).filter(|parts| !parts.is_empty()).ok_or_else(|| {
        format!(
            "--{flag}: an empty list; give at least one value, or omit the flag for the default"
        )
    })
}
