//! `[control]` and `[controller]` of all files as TOML has them: keys and types are right, values are unchecked.
//! [`super::keys`] has the meaning of each key.
//!
//! `entry!` defines a type with one field for each key, and its `of`, which reads a table of the file. `Spanned` is a
//! value with its place in the text, for the line number of a fault.

use toml::Spanned;

use super::read::{Table, entry};

entry! {
    /// `[control]`.
    Control {
        listen: Option<Spanned<String>>,
        certificate: Option<Spanned<String>>,
        key: Option<Spanned<String>>,
        clients_ca: Option<Spanned<String>>,
        metrics: Option<Spanned<String>>,
    }
}

entry! {
    /// `[controller]` of a node.
    Follow {
        addresses: Spanned<Vec<Spanned<String>>>,
        ca: Option<Spanned<String>>,
        certificate: Option<Spanned<String>>,
        key: Option<Spanned<String>>,
    }
}

entry! {
    /// `[controller]` of a controller.
    Controller {
        id: Spanned<i64>,
        store: Option<Spanned<String>>,
        etcd: Option<Spanned<Vec<Spanned<String>>>>,
        etcd_ca: Option<Spanned<String>>,
        etcd_certificate: Option<Spanned<String>>,
        etcd_key: Option<Spanned<String>>,
        prefix: Option<Spanned<String>>,
        socket: Option<Spanned<String>>,
    }
}
