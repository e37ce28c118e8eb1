//! The path of a key or a section.

use crate::problem::shown_text;
use crate::schema::LIST;

/// The path of a key or a section: its names, joined by dots.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyPath {
    /// The path in the schema, for example `auth.users[].name`.
    pub(crate) schema: String,
    /// The path in messages, for example `auth.users[0].name`.
    pub(crate) shown: String,
}

impl KeyPath {
    pub(crate) fn child(&self, name: &str) -> Self {
        let is_bare = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        // A name that is not a bare key of TOML is quoted. So a name with a dot does not look like
        // two names, and a name with a line break stays on one line. A path with a quoted name
        // matches no path in the schema.
        let name = if is_bare && !name.is_empty() {
            name.to_owned()
        } else {
            shown_text(name)
        };
        Self {
            schema: join(&self.schema, &name),
            shown: join(&self.shown, &name),
        }
    }

    pub(crate) fn list(&self) -> Self {
        Self {
            schema: format!("{}{LIST}", self.schema),
            shown: self.shown.clone(),
        }
    }

    pub(crate) fn element(&self, index: usize) -> Self {
        Self {
            schema: format!("{}{LIST}", self.schema),
            shown: format!("{}[{index}]", self.shown),
        }
    }
}

/// The path of `name` in `section`. `section` is empty for the root.
pub(crate) fn join(section: &str, name: &str) -> String {
    if section.is_empty() {
        name.to_owned()
    } else {
        format!("{section}.{name}")
    }
}
