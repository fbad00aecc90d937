//! `[control]` of a leaf's or an agent's file, as TOML has it: keys and types are right, values are
//! unchecked. [`super::keys`] has the meaning of each key.

use serde::Deserialize;
use toml::Spanned;

/// `[control]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    pub listen: Option<Spanned<String>>,
    pub certificate: Option<Spanned<String>>,
    pub key: Option<Spanned<String>>,
    pub clients_ca: Option<Spanned<String>>,
    pub metrics: Option<Spanned<String>>,
}
