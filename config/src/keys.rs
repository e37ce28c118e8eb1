//! All keys of the configuration, and the functions that find a key.

use std::sync::LazyLock;

use crate::schema::Key;
use crate::settings::SECTIONS;

/// Every key, in the order in which `docs/configuration.md` describes the keys.
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let sections = SECTIONS.iter();
    sections.flat_map(|section| section.keys).copied().collect()
});

/// The key with this path; `None` if no key has it.
pub(crate) fn key(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The path of the key whose last part is `name`. `None` if no section or more than one section has
/// such a key.
pub(crate) fn path_of_name(name: &str) -> Option<&'static str> {
    let mut keys = KEYS.iter().filter(|key| key.name() == name);
    let key = keys.next()?;
    keys.next().is_none().then_some(key.path)
}

/// The names of the keys and sections directly in `section`; empty if there is no such section.
pub(crate) fn names_in(section: &str) -> Vec<&'static str> {
    let mut names: Vec<&str> = KEYS
        .iter()
        .filter_map(|key| {
            let below = match section {
                "" => key.path,
                _ => key.path.strip_prefix(section)?.strip_prefix('.')?,
            };
            below.split(['.', '[']).next()
        })
        .collect();
    // Equal names are adjacent, because `KEYS` lists the keys of one section together.
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::join;
    use crate::schema::KeyKind;

    #[test]
    fn no_key_is_listed_twice() {
        for (index, key) in KEYS.iter().enumerate() {
            assert!(
                !KEYS[..index].iter().any(|other| other.path == key.path),
                "{}",
                key.path
            );
        }
    }

    #[test]
    fn an_environment_variable_has_two_underscores_between_section_and_key() {
        let variable = |path| key(path).unwrap().variable();
        assert_eq!(
            variable("pool.max_pool_size").unwrap(),
            "SEAWALL_POOL__MAX_POOL_SIZE"
        );
        assert_eq!(
            variable("listen.tls.key_file").unwrap(),
            "SEAWALL_LISTEN__TLS__KEY_FILE"
        );
        assert_eq!(variable("auth.users[].name"), None);
    }

    #[test]
    fn names_in_returns_the_keys_and_subsections_of_a_section() {
        let mut sections = SECTIONS.iter();
        let admin = sections.find(|section| section.path == "admin").unwrap();
        let mut names: Vec<_> = admin.keys.iter().map(Key::name).collect();
        assert!(names.contains(&"token_file"));
        names.push("tls");
        assert_eq!(names_in("admin"), names);
        assert!(names_in("reload").contains(&"watch"));
        assert_eq!(names_in("auth.users[].scram_sha_1").len(), 4);
        assert!(names_in("").contains(&"deployment"));
        assert!(names_in("auth").contains(&"users"));
        assert!(names_in("pool.max_pool_size").is_empty());
        assert!(names_in("poo").is_empty());
    }

    #[test]
    fn every_key_begins_with_the_path_of_its_section_and_has_either_a_default_or_an_example() {
        for section in SECTIONS.iter() {
            for key in section.keys {
                assert_eq!(key.path, join(section.path, key.name()));
                let is_one = key.default.is_some() != key.example.is_some();
                assert!(is_one, "{}", key.path);
            }
        }
    }

    #[test]
    fn every_key_for_a_number_except_a_port_has_a_unit() {
        for key in KEYS.iter() {
            let is_number = matches!(
                key.kind,
                KeyKind::Integer { .. }
                    | KeyKind::IntegerOr { .. }
                    | KeyKind::Percent
                    | KeyKind::ShapeThresholds { .. }
            );
            // The number of a port has no unit.
            let has_unit = is_number && !key.path.ends_with("_port");
            assert_eq!(has_unit, !key.unit.is_empty(), "{}", key.path);
        }
    }
}
