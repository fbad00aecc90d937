//! Key of a pool, read from a private file. Workers prove the origin of their messages with it. Error messages never
//! contain the file's content. A fault is described by a relative clause, which follows the file's name.

use std::io;
use std::path::Path;

use toml::Spanned;
use wedjat_core::state::files::ExistingFile;
use wedjat_core::wire::auth::{KEY_LEN, Key, new_key};

use super::faults::{FaultCollector, quoted};

/// Maximum size of a key file in bytes. A larger file holds more than a key.
const BYTES_MAX: u64 = 4096;
/// Required form of a key file, for messages.
pub const KEY_FILE: &str = "a regular file of this user or root, of mode 0600 or 0400, that holds 32 hexadecimal digits, as \
                       `(umask 077 && openssl rand -hex 16 >FILE)` makes it";

impl FaultCollector {
    /// Reads the key from the file named by `at`, the value of `key` in the configuration; `None` if no file is named.
    /// Records a fault and returns `None` if the file holds no usable key.
    pub fn key(&mut self, at: Option<&Spanned<String>>, key: &str) -> Option<Key> {
        let at = at?;
        let read = read_key(Path::new(at.get_ref()));
        let found = |reason| format!("{}, {reason}", quoted(at));
        read.map_err(|reason| self.note(at, key, found(reason), KEY_FILE)).ok()
    }
}

/// Reads the key from a file.
///
/// # Errors
/// If the file is not private, cannot be read, or holds no key. The error describes the fault.
pub fn read_key(path: &Path) -> Result<Key, String> {
    let bytes = key(&private_bytes(path, BYTES_MAX)?)?;
    let unsupported = || "which this build cannot use: it lacks the feature `auth`".to_owned();
    new_key(bytes).ok_or_else(unsupported)
}

/// Reads a file of at most `bytes_max` bytes that only this user or root can read or write: a pool's key or a private
/// key of TLS.
///
/// # Errors
/// If the file is not private, is longer, or cannot be read. The error describes the fault.
pub fn private_bytes(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let cannot = |error: io::Error| format!("which can't be read ({error})");
    let file = ExistingFile::at(path).map_err(cannot)?;
    let file = file.ok_or_else(|| cannot(io::ErrorKind::NotFound.into()))?;
    file.check_private().map_err(|fault| format!("which {fault}"))?;
    file.read(bytes_max).map_err(cannot)
}

/// Parses a key: two hexadecimal digits for each byte, with optional white space between them.
fn key(bytes: &[u8]) -> Result<[u8; KEY_LEN], String> {
    let (mut key, mut digits) = ([0; KEY_LEN], 0);
    for byte in bytes.iter().filter(|byte| !byte.is_ascii_whitespace()) {
        let Some(digit) = char::from(*byte).to_digit(16) else {
            return Err("which holds other characters than hexadecimal digits".to_owned());
        };
        // Two digits a byte, the high one first. Excess digits are only counted.
        if let Some(byte) = key.get_mut(digits / 2) {
            *byte = *byte << 4 | digit as u8;
        }
        digits += 1;
    }
    match digits == 2 * KEY_LEN {
        true => Ok(key),
        false => Err(format!("which holds {digits} hexadecimal digits")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use wedjat_core::state::files::is_private;

    use super::*;

    /// Digits of a key: its bytes are 0 to 15.
    const DIGITS: &str = "000102030405060708090a0B0c0D0e0f";

    /// Writes a file with this mode.
    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    // promise: trust.3
    #[test]
    fn a_key_is_its_digits() {
        let expected: [u8; KEY_LEN] = std::array::from_fn(|at| at as u8);
        assert_eq!(key(DIGITS.as_bytes()), Ok(expected));
        assert_eq!(
            key(format!(" {}\t{}\r\n", &DIGITS[..8], &DIGITS[8..]).as_bytes()),
            Ok(expected)
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        for mode in [0o600, 0o400] {
            let _ = fs::remove_file(&path);
            write(&path, &format!("{DIGITS}\n"), mode);
            assert!(read_key(&path).is_ok(), "{mode:o}");
        }
    }

    // promise: trust.3
    #[test]
    fn bad_key_file_is_refused_without_its_contents() {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name);
        // Name, content and mode of a file, and a part of the error.
        let cases = [
            ("group", DIGITS.to_owned(), 0o640, "mode 0640"),
            ("others", DIGITS.to_owned(), 0o604, "mode 0604"),
            ("short", DIGITS[1..].to_owned(), 0o600, "31 hexadecimal digits"),
            ("long", format!("{DIGITS}0"), 0o600, "33 hexadecimal digits"),
            ("empty", String::new(), 0o600, "0 hexadecimal digits"),
            ("huge", DIGITS.repeat(400), 0o600, "more than 4096 bytes"),
            ("prefixed", format!("0x{}", &DIGITS[2..]), 0o600, "other characters"),
            ("commented", format!("{DIGITS} # key"), 0o600, "other characters"),
        ];
        for (name, text, mode, expected) in cases {
            write(&path_of(name), &text, mode);
            let found = read_key(&path_of(name)).unwrap_err();
            assert!(found.contains(expected), "{name}: {found}");
            // These digits are in each file that has any.
            assert!(!found.contains("0102"), "{name}: {found}");
        }
        write(&path_of("good"), DIGITS, 0o600);
        symlink(path_of("good"), path_of("link")).unwrap();
        assert!(read_key(&path_of("link")).unwrap_err().contains("symbolic link"));
        assert!(read_key(folder.path()).unwrap_err().contains("not a regular file"));
        assert!(read_key(Path::new("/dev/zero")).unwrap_err().contains("not a regular file"));
        assert!(read_key(&path_of("missing")).unwrap_err().contains("can't be read"));
        let fifo = path_of("fifo");
        let status = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(status.success());
        assert!(
            read_key(&fifo).unwrap_err().contains("not a regular file"),
            "and nobody waits for a writer"
        );
    }

    // promise: trust.3
    #[test]
    fn foreign_key_file_is_refused_roots_is_accepted() {
        // Owner of the file, user of the process, mode.
        assert!(is_private(65_534, 1000, 0o600).unwrap_err().contains("belongs to user 65534"));
        assert!(is_private(65_534, 0, 0o600).is_err(), "root, too, refuses another user's file");
        assert_eq!(
            [(0, 1000), (1000, 1000)].map(|(owner, user)| is_private(owner, user, 0o600)),
            [Ok(()), Ok(())]
        );
    }
}
