//! Detects that two texts describe the same shape, although only one of them has certain field
//! names. When Seawall learns that these names are data, such as the user names in `points.bob` and
//! `points.alice`, it replaces them by `*`. The older text still has the names.

use seawall_stats::Label;

/// True if replacing each `*` of `general` by a name can give the shape `special`.
pub(super) fn covers(general: &Label, special: &Label) -> bool {
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
    use super::*;

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
