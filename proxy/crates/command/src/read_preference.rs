//! `$readPreference`, as the server selection specification defines it.
//!
//! Source: `source/server-selection/server-selection.md` in
//! <https://github.com/mongodb/specifications>.

use std::time::Duration;

use seawall_wire::{ElementKind, Elements};

/// The mode of a read preference: the members that may run an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only the primary may run the operation.
    Primary,
    /// The primary, or a secondary if there is no primary.
    PrimaryPreferred,
    /// Only secondaries may run the operation.
    Secondary,
    /// A secondary, or the primary if no secondary is suitable.
    SecondaryPreferred,
    /// Any member within the latency window.
    Nearest,
}

/// A decoded read preference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPreference {
    /// The members that may run the operation.
    pub mode: Mode,
    /// Tag sets in order of preference. Each tag is a pair of a name and a value. If there are no
    /// tag sets, every member matches. An empty tag set matches every member too.
    pub tag_sets: Vec<Vec<(String, String)>>,
    /// Maximum replication lag of a secondary; `None` means no limit.
    pub max_staleness: Option<Duration>,
}

/// The reason why a read preference is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadPreferenceError {
    /// The mode is missing or unknown.
    #[error(
        "Could not parse $readPreference mode. Only the modes 'primary', 'primaryPreferred', 'secondary', 'secondaryPreferred', and 'nearest' are supported"
    )]
    Mode,
    /// The document is larger than 4 KiB. A server has no such limit.
    #[error("$readPreference is too large")]
    TooLarge,
    /// `tags` is not an array of documents, or a value in one of these documents is not a string.
    #[error("$readPreference tags must be an array of documents whose values are strings")]
    Tags,
    /// `maxStalenessSeconds` is not a whole number, or is below the minimum of 90 seconds. The
    /// values -1 and 0 are valid: they mean no limit.
    #[error("maxStalenessSeconds must be a number and at least 90")]
    MaxStaleness,
    /// The mode `primary` has a tag set that is not empty, or a maximum staleness.
    #[error("mode 'primary' cannot be combined with tags or maxStalenessSeconds")]
    PrimaryWithCondition,
}

/// The minimum of `maxStalenessSeconds` (max staleness specification).
const MIN_STALENESS_SECONDS: i64 = 90;

/// Maximum size of a `$readPreference` document, in bytes. The limit bounds the memory of decoded
/// tag sets: short tag sets need up to 16 times as much memory as their BSON.
const MAX_BYTES: usize = 4096;

impl ReadPreference {
    /// The read preference of a command without `$readPreference`.
    pub const PRIMARY: Self = Self {
        mode: Mode::Primary,
        tag_sets: Vec::new(),
        max_staleness: None,
    };

    /// The primary, or a secondary while there is no primary.
    pub const PRIMARY_PREFERRED: Self = Self {
        mode: Mode::PrimaryPreferred,
        tag_sets: Vec::new(),
        max_staleness: None,
    };

    /// Decodes a `$readPreference` document of at most 4 KiB. Unknown fields (`hedge`) are ignored.
    /// The Rust driver sends the tag sets to routers in a field `tagSets`, which servers ignore.
    /// This field is used if there is no field `tags`.
    ///
    /// # Errors
    /// See [`ReadPreferenceError`]. Servers reply to an invalid read preference with the error 2
    /// `BadValue` or 9 `FailedToParse`.
    pub fn parse(document: &[u8]) -> Result<Self, ReadPreferenceError> {
        if document.len() > MAX_BYTES {
            return Err(ReadPreferenceError::TooLarge);
        }
        let mut mode = None;
        let (mut tags, mut of_rust_driver) = (None, None);
        let mut parsed = Self::PRIMARY;
        for element in Elements::of(document).filter_map(Result::ok) {
            match element.name {
                b"mode" => mode = Some(parse_mode(element.value)?),
                b"tags" => tags = Some(parse_tag_sets(element.value)?),
                b"tagSets" => of_rust_driver = parse_tag_sets(element.value).ok(),
                b"maxStalenessSeconds" => parsed.max_staleness = parse_staleness(element.value)?,
                _ => {}
            }
        }
        parsed.mode = mode.ok_or(ReadPreferenceError::Mode)?;
        let of_rust_driver = of_rust_driver.filter(|_| parsed.mode != Mode::Primary);
        parsed.tag_sets = tags.or(of_rust_driver).unwrap_or_default();
        let is_conditional =
            parsed.max_staleness.is_some() || parsed.tag_sets.iter().any(|tags| !tags.is_empty());
        if parsed.mode == Mode::Primary && is_conditional {
            return Err(ReadPreferenceError::PrimaryWithCondition);
        }
        Ok(parsed)
    }
}

impl Mode {
    /// The name of the mode in the specification.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::PrimaryPreferred => "primaryPreferred",
            Self::Secondary => "secondary",
            Self::SecondaryPreferred => "secondaryPreferred",
            Self::Nearest => "nearest",
        }
    }
}

fn parse_mode(value: ElementKind<'_>) -> Result<Mode, ReadPreferenceError> {
    match value {
        ElementKind::String(b"primary") => Ok(Mode::Primary),
        ElementKind::String(b"primaryPreferred") => Ok(Mode::PrimaryPreferred),
        ElementKind::String(b"secondary") => Ok(Mode::Secondary),
        ElementKind::String(b"secondaryPreferred") => Ok(Mode::SecondaryPreferred),
        ElementKind::String(b"nearest") => Ok(Mode::Nearest),
        _ => Err(ReadPreferenceError::Mode),
    }
}

fn parse_tag_sets(
    value: ElementKind<'_>,
) -> Result<Vec<Vec<(String, String)>>, ReadPreferenceError> {
    let ElementKind::Array(array) = value else {
        return Err(ReadPreferenceError::Tags);
    };
    let set = |document: &[u8]| {
        let tag = |element: seawall_wire::Element<'_>| {
            let name = String::from_utf8(element.name.to_vec()).ok()?;
            Some((name, element.value.as_str()?.to_owned()))
        };
        let tags = Elements::of(document).map(|e| e.ok().and_then(tag));
        tags.collect::<Option<Vec<_>>>()
            .ok_or(ReadPreferenceError::Tags)
    };
    Elements::of(array)
        .map(|e| {
            e.ok()
                .and_then(|e| e.value.as_document())
                .ok_or(ReadPreferenceError::Tags)
        })
        .map(|document| set(document?))
        .collect()
}

fn parse_staleness(value: ElementKind<'_>) -> Result<Option<Duration>, ReadPreferenceError> {
    match value.as_i64() {
        // In a connection string, -1 means "no limit", and some drivers also send -1 in commands.
        // In a command, servers read 0 as "no limit". If an application sets 0, the Java and Go
        // drivers send this 0 to routers.
        Some(-1 | 0) => Ok(None),
        Some(seconds) if seconds >= MIN_STALENESS_SECONDS => {
            Ok(Some(Duration::from_secs(seconds.unsigned_abs())))
        }
        _ => Err(ReadPreferenceError::MaxStaleness),
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn parse(document: bson::Document) -> Result<ReadPreference, ReadPreferenceError> {
        ReadPreference::parse(&document.to_vec().unwrap())
    }

    #[test]
    fn parse_returns_the_mode_the_tag_sets_and_the_maximum_staleness() {
        let parsed = parse(doc! {
            "mode": "nearest", "tags": [{"dc": "east", "use": "report"}, {}],
            "maxStalenessSeconds": 120, "hedge": {"enabled": true},
        });
        let parsed = parsed.unwrap();
        assert_eq!(parsed.mode, Mode::Nearest);
        assert_eq!(parsed.tag_sets[0][1], ("use".into(), "report".into()));
        assert!(parsed.tag_sets[1].is_empty());
        assert_eq!(parsed.max_staleness, Some(Duration::from_secs(120)));
        assert_eq!(
            parse(doc! {"mode": "primary", "tags": [{}]}).unwrap().mode,
            Mode::Primary
        );
    }

    /// The Rust driver calls the tag sets `tagSets`. Servers ignore this field.
    #[test]
    fn the_field_tag_sets_of_the_rust_driver_is_used_if_there_is_no_field_tags() {
        let east = || doc! {"dc": "east"};
        let only = parse(doc! {"mode": "nearest", "tagSets": [east()]}).unwrap();
        assert_eq!(only.tag_sets, [[("dc".into(), "east".into())]]);
        for both in [
            doc! {"mode": "nearest", "tagSets": [east()], "tags": [{}]},
            doc! {"mode": "nearest", "tags": [{}], "tagSets": [east()]},
        ] {
            assert_eq!(parse(both).unwrap().tag_sets, [[]]);
        }
        for ignored in [
            doc! {"mode": "primary", "tagSets": [east()]},
            doc! {"mode": "nearest", "tagSets": 1},
        ] {
            assert!(parse(ignored).unwrap().tag_sets.is_empty());
        }
    }

    #[test]
    fn a_maximum_staleness_of_0_means_no_limit() {
        for mode in ["primary", "secondary", "nearest"] {
            for zero in [bson::Bson::Int32(0), bson::Bson::Int64(0)] {
                let parsed = parse(doc! {"mode": mode, "maxStalenessSeconds": zero}).unwrap();
                assert_eq!((parsed.mode.as_str(), parsed.max_staleness), (mode, None));
            }
        }
    }

    #[test]
    fn invalid_read_preferences_are_refused() {
        use ReadPreferenceError as E;
        let cases = [
            (doc! {}, E::Mode),
            (doc! {"mode": "Primary"}, E::Mode),
            (doc! {"mode": "nearest", "tags": {}}, E::Tags),
            (doc! {"mode": "nearest", "tags": [{"a": 1}]}, E::Tags),
            (
                doc! {"mode": "nearest", "maxStalenessSeconds": 89},
                E::MaxStaleness,
            ),
            (
                doc! {"mode": "nearest", "maxStalenessSeconds": "x"},
                E::MaxStaleness,
            ),
            (
                doc! {"mode": "primary", "maxStalenessSeconds": 90},
                E::PrimaryWithCondition,
            ),
            (
                doc! {"mode": "primary", "tags": [{"a": "b"}]},
                E::PrimaryWithCondition,
            ),
        ];
        for (document, error) in cases {
            assert_eq!(parse(document.clone()), Err(error), "{document}");
        }
    }
}
