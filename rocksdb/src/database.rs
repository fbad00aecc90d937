//! Safe interface to a RocksDB database: [`fill`] creates it, [`Database`] reads values by key or all in order. Wraps
//! the C functions and owns the objects that they return.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use crate::bindings as c;

/// Bytes of blocks kept in memory: far more than the workload's database has, so that reads need no disk.
const CACHE_BYTES: usize = 64 << 20;
/// Value of `rocksdb_no_compression` in `rocksdb/c.h`.
const NO_COMPRESSION: i32 = 0;

/// Error of RocksDB.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A call failed.
    #[error("{0}")]
    RocksDb(String),
    /// The path holds a NUL byte, so no file can have it.
    #[error("{0} cannot be a path: it holds a zero byte")]
    Path(PathBuf),
}

/// Object of the C interface; dropping it destroys the object.
struct OwnedObject<T> {
    /// The object.
    object: NonNull<T>,
    /// Function that destroys the object.
    destroy: unsafe extern "C" fn(*mut T),
}

impl<T> OwnedObject<T> {
    /// Takes ownership of an object. Returns `None` for a null pointer.
    ///
    /// # Safety
    /// `object` must be null or owned by the caller, and `destroy` must be its destructor.
    unsafe fn new(object: *mut T, destroy: unsafe extern "C" fn(*mut T)) -> Option<Self> {
        NonNull::new(object).map(|object| Self { object, destroy })
    }

    /// Returns the pointer that C functions take.
    fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }
}

impl<T> Drop for OwnedObject<T> {
    fn drop(&mut self) {
        // SAFETY: this value owns the object since `new`, and only this line destroys it.
        unsafe { (self.destroy)(self.as_ptr()) }
    }
}

/// Returns the error for a null object, which RocksDB creates only for lack of memory.
fn out_of_memory() -> Error {
    Error::RocksDb("out of memory".to_owned())
}

/// Makes a call with a pointer for an error message, and converts a message to an [`Error`]. Functions of the C
/// interface report failures only by such a message.
fn checked<T>(call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T, Error> {
    let mut message: *mut c_char = ptr::null_mut();
    let result = call(&raw mut message);
    if message.is_null() {
        return Ok(result);
    }
    // SAFETY: RocksDB writes a NUL-terminated string there, which the caller has to free with rocksdb_free.
    let text = unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        c::rocksdb_free(message.cast());
        text
    };
    Err(Error::RocksDb(text))
}

/// Converts a path for C.
fn c_path(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::Path(path.to_owned()))
}

/// Creates the options of a database: a cache in memory, and no compression.
fn options() -> Result<OwnedObject<c::rocksdb_options_t>, Error> {
    // SAFETY: each object is new and destroyed by its own function; setters take live objects. The options
    // and the table's options keep their own references to the objects that are set, like the C++ classes
    // beneath.
    unsafe {
        let options = OwnedObject::new(c::rocksdb_options_create(), c::rocksdb_options_destroy);
        let options = options.ok_or_else(out_of_memory)?;
        let cache =
            OwnedObject::new(c::rocksdb_cache_create_lru(CACHE_BYTES), c::rocksdb_cache_destroy);
        let table = OwnedObject::new(
            c::rocksdb_block_based_options_create(),
            c::rocksdb_block_based_options_destroy,
        );
        let (cache, table) = (cache.ok_or_else(out_of_memory)?, table.ok_or_else(out_of_memory)?);
        c::rocksdb_block_based_options_set_block_cache(table.as_ptr(), cache.as_ptr());
        c::rocksdb_options_set_block_based_table_factory(options.as_ptr(), table.as_ptr());
        c::rocksdb_options_set_compression(options.as_ptr(), NO_COMPRESSION);
        Ok(options)
    }
}

/// Creates a database in a folder without one, and fills it.
///
/// # Errors
/// If there is one already, or the folder cannot be written.
pub fn fill<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    path: &Path,
    objects: impl IntoIterator<Item = (K, V)>,
) -> Result<(), Error> {
    let options = options()?;
    // SAFETY: the options live.
    unsafe {
        c::rocksdb_options_set_create_if_missing(options.as_ptr(), 1);
        c::rocksdb_options_set_error_if_exists(options.as_ptr(), 1);
    }
    let database = Database::open_with(path, |path, error| {
        // SAFETY: options and path live, and `error` points to space for a message.
        unsafe { c::rocksdb_open(options.as_ptr(), path.as_ptr(), error) }
    })?;
    // SAFETY: the objects are new, and each is destroyed by its own function.
    let (write_options, flush_options) = unsafe {
        let writing =
            OwnedObject::new(c::rocksdb_writeoptions_create(), c::rocksdb_writeoptions_destroy);
        let flushing =
            OwnedObject::new(c::rocksdb_flushoptions_create(), c::rocksdb_flushoptions_destroy);
        (writing.ok_or_else(out_of_memory)?, flushing.ok_or_else(out_of_memory)?)
    };
    // SAFETY: the options live. The flush below writes everything, so the log is not needed.
    unsafe { c::rocksdb_writeoptions_disable_WAL(write_options.as_ptr(), 1) };
    for (key, value) in objects {
        let (key, value) = (key.as_ref(), value.as_ref());
        // SAFETY: database and options live; RocksDB copies both slices before it returns.
        checked(|error| unsafe {
            let (key, key_len) = (key.as_ptr().cast(), key.len());
            let (value, value_len) = (value.as_ptr().cast(), value.len());
            let (database, options) = (database.database.as_ptr(), write_options.as_ptr());
            c::rocksdb_put(database, options, key, key_len, value, value_len, error);
        })?;
    }
    // SAFETY: database and options live.
    checked(|error| unsafe {
        c::rocksdb_flush(database.database.as_ptr(), flush_options.as_ptr(), error);
    })
}

/// An open database. Threads may share it, and several processes may open the same folder by [`Database::open`].
pub struct Database {
    // Order matters: the database is dropped last.
    /// Default options of each read.
    read_options: OwnedObject<c::rocksdb_readoptions_t>,
    /// The database.
    database: OwnedObject<c::rocksdb_t>,
}

// SAFETY: several threads may call RocksDB's DB at once, as db.h states. The read options never change after
// their creation.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

impl Database {
    /// Opens the database in this folder for reading.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let options = options()?;
        Self::open_with(path, |path, error| {
            // SAFETY: options and path live, and `error` points to space for a message. 0: a leftover log is
            // no error.
            unsafe { c::rocksdb_open_for_read_only(options.as_ptr(), path.as_ptr(), 0, error) }
        })
    }

    /// Opens a database by calling `open`, and creates its options for reading.
    fn open_with(
        path: &Path,
        open: impl FnOnce(&CStr, *mut *mut c_char) -> *mut c::rocksdb_t,
    ) -> Result<Self, Error> {
        let path = c_path(path)?;
        let database = checked(|error| open(&path, error))?;
        // SAFETY: both objects are new and without another owner, and destroyed by their own functions.
        unsafe {
            let database =
                OwnedObject::new(database, c::rocksdb_close).ok_or_else(out_of_memory)?;
            let read_options =
                OwnedObject::new(c::rocksdb_readoptions_create(), c::rocksdb_readoptions_destroy);
            Ok(Self { read_options: read_options.ok_or_else(out_of_memory)?, database })
        }
    }

    /// Passes the value under `key` to `read`, without a copy. Returns `None` if the key does not exist.
    ///
    /// # Errors
    /// If the value cannot be read.
    pub fn get<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, Error> {
        let (database, options) = (self.database.as_ptr(), self.read_options.as_ptr());
        // SAFETY: database and options live, and `key` is only read.
        let pinned = checked(|error| unsafe {
            c::rocksdb_get_pinned(database, options, key.as_ptr().cast(), key.len(), error)
        })?;
        // SAFETY: the slice is null or has no other owner.
        let pinned = unsafe { OwnedObject::new(pinned, c::rocksdb_pinnableslice_destroy) };
        Ok(pinned.map(|pinned| {
            let mut len = 0;
            // SAFETY: the slice pins its bytes until its destruction, after `read`.
            read(unsafe {
                let value = c::rocksdb_pinnableslice_value(pinned.as_ptr(), &raw mut len);
                bytes(value, len)
            })
        }))
    }

    /// Passes every key and value to `read`, in the order of keys.
    ///
    /// # Errors
    /// If not all can be read.
    pub fn scan(&self, mut read: impl FnMut(&[u8], &[u8])) -> Result<(), Error> {
        // SAFETY: database and options outlive the iterator, which is new and has no other owner.
        let iterator = unsafe {
            let iterator =
                c::rocksdb_create_iterator(self.database.as_ptr(), self.read_options.as_ptr());
            OwnedObject::new(iterator, c::rocksdb_iter_destroy).ok_or_else(out_of_memory)?
        };
        // SAFETY: the iterator lives.
        unsafe { c::rocksdb_iter_seek_to_first(iterator.as_ptr()) };
        // SAFETY: the iterator lives.
        while unsafe { c::rocksdb_iter_valid(iterator.as_ptr()) } != 0 {
            let (mut key_len, mut value_len) = (0, 0);
            // SAFETY: key and value of a valid iterator stay in place until it moves.
            unsafe {
                let key = c::rocksdb_iter_key(iterator.as_ptr(), &raw mut key_len);
                let value = c::rocksdb_iter_value(iterator.as_ptr(), &raw mut value_len);
                read(bytes(key, key_len), bytes(value, value_len));
                c::rocksdb_iter_next(iterator.as_ptr());
            }
        }
        // SAFETY: the iterator lives.
        checked(|error| unsafe { c::rocksdb_iter_get_error(iterator.as_ptr(), error) })
    }
}

/// Returns the bytes at `start` as a slice.
///
/// # Safety
/// `len` bytes must be readable at `start` for as long as the slice lives; `start` may be null if `len` is 0.
unsafe fn bytes<'a>(start: *const c_char, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: by the contract above.
    unsafe { std::slice::from_raw_parts(start.cast(), len) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    /// Creates a database with these objects in a new folder, and opens it.
    fn filled(objects: &[(&str, &str)]) -> (tempfile::TempDir, Database) {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path(), objects.iter().copied()).unwrap();
        let database = Database::open(folder.path()).unwrap();
        (folder, database)
    }

    #[test]
    fn stored_values_are_read_in_order() {
        let (_folder, database) = filled(&[("b", "two"), ("a", "one"), ("empty", "")]);
        assert_eq!(database.get(b"a", <[u8]>::to_vec).unwrap(), Some(b"one".to_vec()));
        assert_eq!(database.get(b"empty", <[u8]>::len).unwrap(), Some(0));
        assert_eq!(database.get(b"c", <[u8]>::len).unwrap(), None);
        let mut all = Vec::new();
        database.scan(|key, value| all.push((key.to_vec(), value.len()))).unwrap();
        assert_eq!(all, [(b"a".to_vec(), 3), (b"b".to_vec(), 3), (b"empty".to_vec(), 0)]);
    }

    #[test]
    fn several_readers_read_at_once() {
        let (folder, database) = filled(&[("a", "one")]);
        let again = Database::open(folder.path()).unwrap();
        std::thread::scope(|scope| {
            for reader in [&database, &again, &database] {
                scope.spawn(move || {
                    for _ in 0..100 {
                        assert_eq!(reader.get(b"a", <[u8]>::len).unwrap(), Some(3));
                    }
                });
            }
        });
    }

    #[test]
    fn unusable_path_is_refused_with_a_reason() {
        let (folder, _database) = filled(&[("a", "one")]);
        let error = fill(folder.path(), [("a", "b")]).unwrap_err().to_string();
        assert!(error.contains("exists"), "{error}");
        let error = Database::open(&folder.path().join("none")).err().unwrap().to_string();
        assert!(error.contains("none"), "{error}");
        assert!(matches!(Database::open(Path::new("a\0b")), Err(Error::Path(_))));
    }
}
