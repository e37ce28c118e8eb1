//! Detects that two texts describe the same shape, although only one of them has certain field
//! names. When Seawall learns that these names are data, such as the user names in `points.bob` and
//! `points.alice`, it replaces them by `*`. The older text still has the names.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use seawall_stats::{Label, Level, Period, float};

/// Maximum number of pairs of texts that are compared during one comparison of two periods. Without
/// it, the comparison would take too long if a client has sent thousands of similar shapes. Once
/// this number is reached, a shape whose text changed counts as another shape.
const MAX_COMPARED_PAIRS: u32 = 100_000;

/// The shapes of a period. The keys of the maps are hashes ([`frame`]) of the part of a label that
/// stays the same if names are replaced by `*`.
struct Texts<'a> {
    /// The ids of the shapes.
    ids: HashSet<&'a str>,
    all: HashMap<u64, Vec<&'a Label>>,
    /// The shapes with a `*` in their text.
    general: HashMap<u64, Vec<&'a Label>>,
}

impl<'a> Texts<'a> {
    fn of(period: &'a Period) -> Self {
        let mut texts = Self {
            ids: HashSet::new(),
            all: HashMap::new(),
            general: HashMap::new(),
        };
        let occurring = period.series.iter().filter(|(_, of)| of.count > 0);
        for (label, _) in occurring {
            let Some(frame) = frame(label) else { continue };
            texts.ids.extend(id(label));
            texts.all.entry(frame).or_default().push(label);
            if is_general(label) {
                texts.general.entry(frame).or_default().push(label);
            }
        }
        texts
    }

    /// True if the period has this shape, perhaps with another text.
    fn has(&self, shape: &Label) -> bool {
        id(shape).is_some_and(|id| self.ids.contains(id))
    }
}

/// Finds shapes whose text changed between two periods, although the shape did not.
pub(super) struct Renames<'a> {
    /// The earlier and the later period.
    periods: [&'a Period; 2],
    before: Texts<'a>,
    now: Texts<'a>,
    /// Number of pairs of texts that may still be compared.
    left: Cell<u32>,
}

impl<'a> Renames<'a> {
    pub(super) fn of(before: &'a Period, now: &'a Period) -> Self {
        Self {
            periods: [before, now],
            before: Texts::of(before),
            now: Texts::of(now),
            left: Cell::new(MAX_COMPARED_PAIRS),
        }
    }

    /// True if `shape`, a shape of the later period, also occurred in the earlier period, perhaps
    /// with another text. There are two cases. Either the earlier period has a shape with the same
    /// id. Or it has a shape with a similar text, and operations have moved from that shape to
    /// `shape`. Two texts are similar if they differ only in names that one of them replaces by
    /// `*`. `load` is the drift of the operations per second: the change that all shapes have in
    /// common, later divided by earlier.
    pub(super) fn occurred_before(&self, shape: &Label, load: f64) -> bool {
        let have_moved = |other: &Label| self.have_moved(other, shape, load);
        self.before.has(shape) || self.find_alike(&self.before, shape, have_moved)
    }

    /// True if `shape`, a shape of the earlier period, also occurs in the later period, perhaps
    /// with another text. The cases and `load` are those of [`Self::occurred_before`].
    pub(super) fn occurs_now(&self, shape: &Label, load: f64) -> bool {
        let have_moved = |other: &Label| self.have_moved(shape, other, load);
        self.now.has(shape) || self.find_alike(&self.now, shape, have_moved)
    }

    /// True if operations may have moved from the shape `from` to the shape `to`. At most the
    /// smaller of two rates can have moved: the earlier rate of `from` (multiplied by `load`), or
    /// the later rate of `to`. The result is true if `from` has lost, and `to` has gained, at least
    /// half of that rate. Without this check, two different shapes could look like one shape with a
    /// changed text, for example with the fields `a.*` (for `a.2026`) and `a.total`. Names such as
    /// years count as data immediately, so `a.*` can occur in both periods.
    fn have_moved(&self, from: &Label, to: &Label, load: f64) -> bool {
        let [before, now] = self.periods;
        let rates = |shape| [per_second(before, shape) * load, per_second(now, shape)];
        let [[from_before, from_now], [to_before, to_now]] = [from, to].map(rates);
        let can_have_moved = from_before.min(to_now);
        (from_before - from_now).min(to_now - to_before) >= can_have_moved / 2.0
    }

    /// True if `texts` has a shape that `is_counted` accepts and whose text is similar to the text
    /// of `shape`. Two texts are similar if they differ only in names that one of them replaces by
    /// `*`.
    fn find_alike(
        &self,
        texts: &Texts<'_>,
        shape: &Label,
        is_counted: impl Fn(&Label) -> bool,
    ) -> bool {
        let Some(frame) = frame(shape) else {
            return false;
        };
        let general = texts.general.get(&frame).into_iter().flatten();
        let special = texts.all.get(&frame).filter(|_| is_general(shape));
        let special = special.into_iter().flatten();
        let mut pairs = (general.map(|general| (*general, shape, *general)))
            .chain(special.map(|special| (shape, *special, *special)))
            .take_while(|_| self.count_comparison());
        pairs.any(|(general, special, other)| covers(general, special) && is_counted(other))
    }

    /// Counts one comparison of two texts. False once [`MAX_COMPARED_PAIRS`] is reached.
    fn count_comparison(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }
}

/// The operations per second of a shape in a period.
fn per_second(period: &Period, shape: &Label) -> f64 {
    let count = period.series.get(shape).map_or(0, |figures| figures.count);
    float(count) / period.length.as_secs_f64()
}

/// A hash of the part of a shape's label that replacing names by `*` does not change: the command,
/// the namespace and the separators in the text. `None` for a label of several shapes.
fn frame(label: &Label) -> Option<u64> {
    let Label::Shape {
        level: Level::Fine,
        command,
        db,
        collection,
        text,
        ..
    } = label
    else {
        return None;
    };
    let separators: String = text.chars().filter(|of| ends_component(*of)).collect();
    let mut hasher = DefaultHasher::new();
    (command, db, collection, separators).hash(&mut hasher);
    Some(hasher.finish())
}

fn id(label: &Label) -> Option<&str> {
    match label {
        Label::Shape { id, .. } => Some(id),
        _ => None,
    }
}

/// True if the shape's text has a `*`.
fn is_general(label: &Label) -> bool {
    matches!(label, Label::Shape { text, .. } if text.contains('*'))
}

/// True if replacing each `*` of `general` by a name can give the shape `special`.
fn covers(general: &Label, special: &Label) -> bool {
    let (
        Label::Shape {
            command,
            db,
            collection,
            text,
            ..
        },
        Label::Shape {
            command: its_command,
            db: its_db,
            collection: its_collection,
            text: its_text,
            ..
        },
    ) = (general, special)
    else {
        return false;
    };
    (command, db, collection) == (its_command, its_db, its_collection)
        && text != its_text
        && is_like(text, its_text)
}

/// True if replacing each `*` of `pattern` by a path component (a name between dots) can give
/// `text`. Quotes are ignored: if only the name that `*` replaces needs quotes, `text` has quotes
/// and `pattern` has none. The members of a set, such as the fields of a filter, are sorted by
/// their text, and replacing names by `*` can change their order. Then shapes with several replaced
/// names in one set may not be recognized.
fn is_like(pattern: &str, text: &str) -> bool {
    let unquoted = |character: &char| *character != '"';
    let mut pattern = pattern.chars().filter(unquoted).peekable();
    let mut text = text.chars().filter(unquoted).peekable();
    while let Some(wanted) = pattern.next() {
        let Some(found) = text.next() else {
            return false;
        };
        if wanted == found {
            continue;
        }
        if wanted != '*' || ends_component(found) {
            return false;
        }
        while text.next_if(|next| !ends_component(*next)).is_some() {}
        if pattern.peek().is_some_and(|next| !ends_component(*next)) {
            return false;
        }
    }
    text.next().is_none()
}

fn ends_component(character: char) -> bool {
    matches!(character, '.' | ':' | ',' | '{' | '}' | '[' | ']')
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::{super::tests::alike, *};

    fn shape(collection: &str, text: &str) -> Arc<Label> {
        Arc::new(Label::Shape {
            level: Level::Fine,
            id: text.into(),
            command: "find".into(),
            db: "d".into(),
            collection: collection.into(),
            text: text.into(),
        })
    }

    fn minute(shapes: &[Arc<Label>]) -> Period {
        Period {
            length: Duration::from_mins(1),
            series: (shapes.iter().cloned())
                .map(|shape| (shape, alike(1, 1.0)))
                .collect(),
        }
    }

    #[test]
    fn only_texts_with_a_star_are_compared_with_texts_of_the_same_collection_and_separators() {
        let names = (0..1_000).map(|number| shape("c", &format!("{{a.n{number}:?}}")));
        let before: Vec<_> = names.collect();
        let (before, now) = (minute(&before), minute(&[]));
        let renames = Renames::of(&before, &now);
        let compared = || MAX_COMPARED_PAIRS - renames.left.get();
        for unlike in [
            shape("c", "{a.bob:?}"),
            shape("c", "{a.*:?,b:?}"),
            shape("other", "{a.*:?}"),
        ] {
            assert!(!renames.occurred_before(&unlike, 1.0), "{unlike:?}");
            assert_eq!(compared(), 0, "{unlike:?}");
        }
        assert!(renames.occurred_before(&shape("c", "{a.*:?}"), 1.0));
        assert_eq!(compared(), 1);
        assert!(!renames.occurs_now(&shape("c", "{a.*:?}"), 1.0));
        assert_eq!(compared(), 1);
    }

    #[test]
    fn the_number_of_texts_compared_in_one_comparison_is_limited() {
        let of = |name: &str| -> Vec<_> {
            let texts = (0..1_000).map(|number| format!("{{a.*.{name}{number}:?}}"));
            texts.map(|text| shape("c", &text)).collect()
        };
        let (earlier, later) = (of("x"), of("y"));
        let (before, now) = (minute(&earlier), minute(&later));
        let renames = Renames::of(&before, &now);
        for shape in &later {
            assert!(!renames.occurred_before(shape, 1.0));
        }
        assert_eq!(renames.left.get(), 0);
        assert!(!renames.occurs_now(&shape("c", "{a.bob.y1:?}"), 1.0));
    }

    #[test]
    fn star_matches_exactly_one_path_component() {
        let alike = [
            ("{a.*:?}", "{a.bob:?}"),
            ("{a.*.b:?}", "{a.bob.b:?}"),
            ("{a.*:?,b.*:1}", "{a.bob:?,b.alice:1}"),
            ("{a.*:?}", "{\"a.bob smith\":?}"),
            ("{a.*:?,c.*:1}", "{a.bob:?,c.*:1}"),
        ];
        for (pattern, text) in alike {
            assert!(is_like(pattern, text), "{pattern} {text}");
        }
        let unlike = [
            ("{a.*:?}", "{b.bob:?}"),
            ("{a.*:?}", "{a:?}"),
            ("{a.*:?}", "{a.:?}"),
            ("{a.*:?}", "{a.bob.b:?}"),
            ("{a.*:?}", "{a.bob:1}"),
            ("{a.bob:?}", "{a.*:?}"),
            ("{a.*:?}", "{a.bob:?,b:?}"),
            ("{a.*_x:?}", "{a.bob_y:?}"),
        ];
        for (pattern, text) in unlike {
            assert!(!is_like(pattern, text), "{pattern} {text}");
        }
    }
}
