//! Annotations: events that explain a change in the figures, such as a deploy or a failover.
//!
//! At most [`MAX_ANNOTATIONS`] are kept. At this limit, the oldest annotation of the most frequent
//! kind is removed, so a frequent kind cannot displace the annotations of other kinds. Annotations
//! are stored in the history file. This module reads no clock: the caller passes all times.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::packed::{put, take};

/// Maximum number of annotations that are kept. Annotations do not expire, so this number limits
/// their memory and their part of the history file.
const MAX_ANNOTATIONS: usize = 1_000;

/// Maximum length of an annotation's text, in bytes.
pub const MAX_ANNOTATION_BYTES: usize = 200;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnnotationKind {
    /// A reload of the configuration.
    Reload,
    /// Another server became primary.
    Failover,
    /// A reconnect storm: far more short-lived client connections than usual.
    Storm,
    /// A stall: operations on one server or on all servers took far longer than usual.
    Stall,
    /// The operations of a shape (or all operations) became slower or faster, or a shape is new.
    /// Other changes get no annotation.
    Change,
    /// A deploy, reported by a caller of the API.
    Deploy,
}

impl AnnotationKind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Reload,
        Self::Failover,
        Self::Storm,
        Self::Stall,
        Self::Change,
        Self::Deploy,
    ];

    /// The name in the API and in the history file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reload => "reload",
            Self::Failover => "failover",
            Self::Storm => "storm",
            Self::Stall => "stall",
            Self::Change => "change",
            Self::Deploy => "deploy",
        }
    }
}

/// An event at one moment, or over a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// When the event began.
    pub at: SystemTime,
    /// When the event ended; `None` for an event at one moment, and for an event that has not
    /// ended.
    pub end: Option<SystemTime>,
    /// The kind of event.
    pub kind: AnnotationKind,
    /// A description of the event, for people. It has at most [`MAX_ANNOTATION_BYTES`] bytes and no
    /// control characters.
    pub text: Box<str>,
}

impl Annotation {
    /// Creates an annotation. A text that is too long is cut, and control characters become spaces.
    pub fn new(kind: AnnotationKind, at: SystemTime, end: Option<SystemTime>, text: &str) -> Self {
        let end_of_text = text.floor_char_boundary(MAX_ANNOTATION_BYTES.min(text.len()));
        let text = text.get(..end_of_text).unwrap_or_default();
        let text: String = text
            .chars()
            .map(|letter| if letter.is_control() { ' ' } else { letter })
            .collect();
        // A control character of one or two bytes becomes a space of one byte, so the text stays
        // within [`MAX_ANNOTATION_BYTES`].
        Self {
            at,
            end,
            kind,
            text: text.into(),
        }
    }

    /// True if a part of the event is at or after `from` and before `to`.
    fn is_within(&self, from: SystemTime, to: SystemTime) -> bool {
        self.at < to && self.end.unwrap_or(self.at) >= from
    }

    fn overlaps(&self, other: &Self) -> bool {
        let end = |of: &Self| of.end.unwrap_or(of.at);
        self.at <= end(other) && other.at <= end(self)
    }

    /// The bytes of the annotation in the history file.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, milliseconds(self.at));
        // The number 0 means `None`, so an end at the time 0 is stored as 1 ms.
        put(
            &mut bytes,
            self.end.map_or(0, |end| milliseconds(end).max(1)),
        );
        let kind = self.kind.as_str();
        put(&mut bytes, u64::try_from(kind.len()).unwrap_or(0));
        bytes.extend_from_slice(kind.as_bytes());
        bytes.extend_from_slice(self.text.as_bytes());
        bytes
    }

    /// Reads an annotation from the bytes that [`Annotation::bytes`] returned. `None` if the bytes
    /// are damaged, or if the kind of the annotation is unknown.
    pub(super) fn read(mut bytes: &[u8]) -> Option<Self> {
        let at = time(take(&mut bytes).ok()?)?;
        let end = match take(&mut bytes).ok()? {
            0 => None,
            end => Some(time(end)?),
        };
        let length = usize::try_from(take(&mut bytes).ok()?).ok()?;
        let (kind, text) = bytes.split_at_checked(length)?;
        let mut kinds = AnnotationKind::ALL.into_iter();
        let kind = kinds.find(|of| of.as_str().as_bytes() == kind)?;
        Some(Self::new(kind, at, end, std::str::from_utf8(text).ok()?))
    }
}

fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn time(milliseconds: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds))
}

/// The kept annotations.
#[derive(Debug, Default)]
pub(super) struct Annotations {
    /// The kept annotations by number. A later annotation has a higher number.
    kept: BTreeMap<u64, Annotation>,
    next: u64,
    /// Changes since the last call of [`Annotations::take_changes`]. The key is the number of an
    /// annotation. The value is the new or changed annotation, or `None` if it was removed.
    changed: BTreeMap<u64, Option<Annotation>>,
}

impl Annotations {
    /// Loads the annotations of the history file.
    pub(super) fn restore(&mut self, stored: Vec<(u64, Annotation)>) {
        self.kept.extend(stored);
        let last = self.kept.last_key_value();
        self.next = last.map_or(0, |(number, _)| number.saturating_add(1));
        self.keep_within_limit();
    }

    /// Adds an annotation. Returns its number.
    pub(super) fn add(&mut self, annotation: Annotation) -> u64 {
        let number = self.next;
        self.next = self.next.saturating_add(1);
        self.put(number, annotation);
        self.keep_within_limit();
        number
    }

    /// The annotations with the number `number` or a higher number, and the number that the next
    /// new annotation gets.
    pub(super) fn since(&self, number: u64) -> (Vec<Annotation>, u64) {
        let added = self.kept.range(number..).map(|(_, of)| of.clone());
        (added.collect(), self.next)
    }

    /// Replaces an annotation, if it is still kept.
    pub(super) fn replace(&mut self, number: u64, annotation: Annotation) {
        if self.kept.contains_key(&number) {
            self.put(number, annotation);
        }
    }

    /// Adds a stall of `server`, or of the whole deployment if `server` is `None`. Stalls that
    /// overlap in time share one annotation, because a stall of one server is usually also detected
    /// in the figures of all servers together.
    pub(super) fn add_stall(&mut self, server: Option<&str>, at: SystemTime, end: SystemTime) {
        const ALL: &str = "stall of the deployment";
        let text = match server {
            Some(server) => format!("stall of {server}"),
            None => ALL.to_owned(),
        };
        let stall = Annotation::new(AnnotationKind::Stall, at, Some(end), &text);
        let is_same =
            |other: &Annotation| other.kind == AnnotationKind::Stall && other.overlaps(&stall);
        let same = self.kept.iter().rev().find(|(_, other)| is_same(other));
        let Some((number, mut same)) = same.map(|(number, same)| (*number, same.clone())) else {
            self.add(stall);
            return;
        };
        same.at = same.at.min(at);
        same.end = same.end.max(stall.end);
        if &*same.text == ALL {
            same.text = stall.text;
        } else if server.is_some() && same.text != stall.text {
            same.text = "stall of several servers".into();
        }
        self.put(number, same);
    }

    fn put(&mut self, number: u64, annotation: Annotation) {
        self.changed.insert(number, Some(annotation.clone()));
        self.kept.insert(number, annotation);
    }

    fn keep_within_limit(&mut self) {
        while self.kept.len() > MAX_ANNOTATIONS {
            let of_kind = |kind| self.kept.values().filter(|of| of.kind == kind).count();
            let most = AnnotationKind::ALL
                .into_iter()
                .max_by_key(|kind| of_kind(*kind));
            let mut kept = self.kept.iter();
            let Some((oldest, _)) = kept.find(|(_, of)| Some(of.kind) == most) else {
                return;
            };
            let oldest = *oldest;
            self.kept.remove(&oldest);
            self.changed.insert(oldest, None);
        }
    }

    /// The annotations between two times, the earliest first. `ongoing` is the number of an
    /// annotation whose event has not ended. This annotation is listed if its event began before
    /// `to`.
    pub(super) fn list(
        &self,
        from: SystemTime,
        to: SystemTime,
        ongoing: Option<u64>,
    ) -> Vec<Annotation> {
        let is_listed = |number: u64, of: &Annotation| {
            of.is_within(from, to) || (Some(number) == ongoing && of.at < to)
        };
        let within = self
            .kept
            .iter()
            .filter(|(number, of)| is_listed(**number, of));
        let mut within: Vec<_> = within.map(|(_, of)| of.clone()).collect();
        within.sort_by_key(|annotation| annotation.at);
        within
    }

    /// Returns the changes since the last call.
    pub(super) fn take_changes(&mut self) -> BTreeMap<u64, Option<Annotation>> {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn texts(annotations: &Annotations) -> Vec<String> {
        let all = annotations.list(at(0), at(1 << 40), None);
        all.iter().map(|of| of.text.to_string()).collect()
    }

    #[test]
    fn at_the_maximum_number_of_annotations_only_those_of_the_most_frequent_kind_are_removed() {
        let mut annotations = Annotations::default();
        annotations.add(Annotation::new(AnnotationKind::Deploy, at(1), None, "v1"));
        for second in 2..3_000 {
            let storm = Annotation::new(AnnotationKind::Storm, at(second), None, "storm");
            annotations.add(storm);
        }
        let texts = texts(&annotations);
        assert_eq!((texts.len(), &*texts[0]), (MAX_ANNOTATIONS, "v1"));
        let changes = annotations.take_changes();
        let removed = changes.values().filter(|change| change.is_none());
        assert_eq!(removed.count(), 2_999 - MAX_ANNOTATIONS);
    }

    #[test]
    fn an_ongoing_event_is_listed_for_each_period_after_its_beginning() {
        let mut annotations = Annotations::default();
        let storm = Annotation::new(AnnotationKind::Storm, at(10), None, "storm");
        let number = annotations.add(storm);
        let list = |from, to, ongoing| annotations.list(at(from), at(to), ongoing);
        assert_eq!(list(700, 800, None), []);
        assert_eq!(list(700, 800, Some(number)).len(), 1);
        assert_eq!(list(0, 10, Some(number)), []);
    }

    #[test]
    fn long_text_is_cut_and_control_characters_become_spaces() {
        let text = format!("a\u{1b}[31m\n{}", "\u{20ac}".repeat(100));
        let annotation = Annotation::new(AnnotationKind::Deploy, at(1), None, &text);
        assert!(annotation.text.starts_with("a [31m \u{20ac}"));
        assert!(annotation.text.len() <= MAX_ANNOTATION_BYTES);
    }

    /// A stall of one server is usually also detected in the figures of all servers together.
    #[test]
    fn a_stall_of_all_servers_and_overlapping_stalls_of_single_servers_share_one_annotation() {
        let mut annotations = Annotations::default();
        annotations.add_stall(None, at(10), at(13));
        annotations.add_stall(Some("a:1"), at(11), at(14));
        assert_eq!(texts(&annotations), ["stall of a:1"]);
        let all = annotations.list(at(0), at(99), None);
        assert_eq!((all[0].at, all[0].end), (at(10), Some(at(14))));
        annotations.add_stall(None, at(12), at(13));
        annotations.add_stall(Some("b:1"), at(13), at(14));
        annotations.add_stall(Some("b:1"), at(20), at(21));
        assert_eq!(
            texts(&annotations),
            ["stall of several servers", "stall of b:1"]
        );
    }

    #[test]
    fn events_that_continue_into_a_period_are_listed_in_that_period() {
        let mut annotations = Annotations::default();
        let storm = |end| Annotation::new(AnnotationKind::Storm, at(10), end, "storm");
        let number = annotations.add(storm(None));
        assert_eq!(annotations.list(at(15), at(20), None), []);
        annotations.replace(number, storm(Some(at(16))));
        assert_eq!(annotations.list(at(15), at(20), None).len(), 1);
        assert_eq!(annotations.list(at(5), at(10), None).len(), 0);
        assert_eq!(annotations.list(at(5), at(11), None).len(), 1);
    }

    proptest! {
        #[test]
        fn stored_annotation_is_read_back_unchanged(
            ms in 0_u64..1 << 50, lasts in prop::option::of(1_u64..1 << 40), text in ".{0,80}", kind in 0_usize..6,
        ) {
            let start = time(ms).unwrap();
            let end = lasts.map(|lasts| start + Duration::from_millis(lasts));
            let annotation = Annotation::new(AnnotationKind::ALL[kind], start, end, &text);
            prop_assert_eq!(Annotation::read(&annotation.bytes()), Some(annotation));
        }

        #[test]
        fn reading_a_damaged_annotation_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            drop(Annotation::read(&bytes));
        }
    }
}
