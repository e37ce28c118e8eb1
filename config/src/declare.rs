//! The macros that declare sections, keys, and the words that a key accepts.
//!
//! [`section!`] generates four items for the settings of a section. They are the struct, its
//! [`Section`](crate::Section) for the check and the documentation, and the function that reads the
//! struct from a table. The fourth item compares the struct with the running settings at a reload.
//! Each key is one field:
//!
//! ```text
//! /// Connections of one user to one server.                     meaning, and the field's rustdoc
//! max_pool_size: NonZeroUsize = key("pool.max_pool_size",        type, path
//!     CONNECTIONS, Restart, default 100, unit "connections");    allowed, change, default, unit
//! ```
//!
//! `default` and `unit` may be absent. A key without a default has an `example` for the full
//! example file. Defaults and examples are written as in TOML, but numbers without `_`. Fields that
//! do not belong to a single key follow in braces, each with the function that reads its value.

/// Declares a section and its keys. `optional` before the path means that the section has an effect
/// as soon as it is present, so the full example file comments it out.
macro_rules! section {
    (
        $(#[doc = $about:literal])*
        $($optional:ident)? $path:literal => $name:ident;
        $($(#[doc = $meaning:literal])* $field:ident: $type:ty = key $key:tt;)*
        $({ $($(#[doc = $doc:literal])* $other:ident: $other_type:ty = $read:path;)* })?
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $($(#[doc = $meaning])* pub $field: $type,)*
            $($($(#[doc = $doc])* pub $other: $other_type,)*)?
        }

        // `Eq` is correct although there are floats, because the check refuses NaN.
        impl Eq for $name {}

        impl $name {
            pub(crate) const SECTION: $crate::Section = $crate::Section {
                path: $path,
                about: concat!($($about),*).trim_ascii(),
                is_optional: !stringify!($($optional)?).is_empty(),
                keys: keys! { $($(#[doc = $meaning])* key $key;)* },
            };
        }

        impl $crate::reloadable::Reloadable for $name {
            fn changed(&self, running: &Self, changed: &mut Vec<&'static str>) {
                let mut keys = Self::SECTION.keys.iter();
                $(
                    let key = keys.next();
                    if self.$field != running.$field {
                        changed.extend(key.map(|key| key.path));
                    }
                )*
                $($(
                    if self.$other != running.$other {
                        changed.push(concat!($path, ".", stringify!($other)));
                    }
                )*)?
            }

            #[allow(unused_variables, reason = "only sections with other fields use `change_of`")]
            fn adopt_live(&mut self, newer: &Self, change_of: fn(&str) -> $crate::Change) {
                let mut keys = Self::SECTION.keys.iter();
                $(
                    if keys.next().is_some_and(|key| key.change == $crate::Change::Live) {
                        self.$field.clone_from(&newer.$field);
                    }
                )*
                $($(
                    let path = concat!($path, ".", stringify!($other));
                    if change_of(path) == $crate::Change::Live {
                        self.$other.clone_from(&newer.$other);
                    }
                )*)?
            }
        }

        impl $crate::read::ReadSection for $name {
            fn read(part: &mut $crate::read::Part<'_>) -> Option<Self> {
                let mut keys = Self::SECTION.keys.iter();
                $(let $field = part.value(keys.next()?);)*
                $($(let $other = $read(part);)*)?
                Some(Self { $($field: $field?,)* $($($other: $other?,)*)? })
            }
        }
    };
}

/// Declares keys, but no struct with a field for each key. Separate functions read the values.
macro_rules! keys {
    ($(
        $(#[doc = $meaning:literal])*
        key(
            $path:literal, $kind:expr, $change:ident
            $(, default $default:literal)? $(, example $example:literal)? $(, unit $unit:literal)?
        );
    )*) => {
        &[$($crate::Key {
            path: $path,
            kind: $kind,
            default: $crate::declare::literal!($($default)?),
            example: $crate::declare::literal!($($example)?),
            unit: concat!($($unit)?),
            change: $crate::Change::$change,
            meaning: concat!($($meaning),*).trim_ascii(),
        }),*]
    };
}

/// Declares the words that a key accepts, as an enum.
macro_rules! words {
    (
        $(#[doc = $about:literal])*
        $name:ident { $($(#[doc = $meaning:literal])* $variant:ident = $word:literal,)* }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[doc = $meaning])* $variant,)*
        }

        impl $name {
            /// All variants, in the order in which `docs/configuration.md` lists their words.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The kind of a key that accepts exactly one of the words.
            #[allow(dead_code, reason = "a key for a list of words has another kind")]
            pub(crate) const KIND: $crate::KeyKind =
                $crate::KeyKind::Choice { accepted: &[$($word),*] };

            /// The variant's word in the configuration.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            pub(crate) fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|word| word.name() == name)
            }
        }

        impl $crate::read::Setting for $name {
            fn read(value: &toml::Value, given: &mut $crate::read::Given<'_>) -> Option<Self> {
                given.fitting(value.as_str().and_then(Self::named))
            }
        }
    };
}

/// Converts an optional literal to an optional text. Strings lose their quotes.
macro_rules! literal {
    () => {
        None
    };
    ($literal:literal) => {
        Some($crate::declare::unquoted(stringify!($literal)))
    };
}

pub(crate) use {keys, literal, section, words};

pub(crate) const fn unquoted(literal: &'static str) -> &'static str {
    match literal.as_bytes() {
        [b'"', .., b'"'] => literal.split_at(literal.len() - 1).0.split_at(1).1,
        _ => literal,
    }
}
