//! `[controller]` of a node's file, and a controller's own file, as TOML has them: keys and types are right,
//! values are unchecked. [`super::keys`] has the meaning of each key.

use serde::Deserialize;
use toml::Spanned;

use super::raw_control;

/// `[controller]` of a node.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Follow {
    pub addresses: Spanned<Vec<Spanned<String>>>,
    pub ca: Option<Spanned<String>>,
    pub certificate: Option<Spanned<String>>,
    pub key: Option<Spanned<String>>,
}

/// Controller's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub controller: Controller,
    pub control: Option<raw_control::Control>,
}

/// `[controller]` of a controller.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Controller {
    pub id: Spanned<i64>,
    pub store: Option<Spanned<String>>,
    pub etcd: Option<Spanned<Vec<Spanned<String>>>>,
    pub etcd_ca: Option<Spanned<String>>,
    pub etcd_certificate: Option<Spanned<String>>,
    pub etcd_key: Option<Spanned<String>>,
    pub prefix: Option<Spanned<String>>,
    pub lease_s: Option<Spanned<i64>>,
    pub socket: Option<Spanned<String>>,
}
