//! The path of a key or a section.

use crate::problem::shown_text;
use crate::schema::LIST;

/// A path. Names are joined by dots.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyPath {
    /// As in the schema: `auth.users[].name`.
    pub(crate) schema: String,
    /// As in messages: `auth.users[0].name`.
    pub(crate) shown: String,
}

impl KeyPath {
    pub(crate) fn child(&self, name: &str) -> Self {
        let is_bare = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        // A name with a dot must not look like two names, and one with a line break must not span
        // two lines. Quoted, it is on one line and matches nothing in the schema.
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

/// The path of `name` in `section`, which is empty for the root.
pub(crate) fn join(section: &str, name: &str) -> String {
    if section.is_empty() {
        name.to_owned()
    } else {
        format!("{section}.{name}")
    }
}
