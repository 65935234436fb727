//! Reference of the settings, generated from their tables.

use super::table::{Changes, Key, Table};
use super::{Acceleration, Emulation};
use clap::Args;
use std::fmt::Write;

/// The reference page: each key with its flag, its form in a file, its meaning and when it can
/// change.
pub fn reference() -> String {
    let mut text = "\
# Settings of boxes

Every key of `longhaul accelerate` and `longhaul emulate`, as a flag and in a file of `--config`.
The command line precedes a `[[pair]]`, which precedes `[defaults]`; a list replaces the one of
lower precedence. This page is generated from the tables in `run/boxes/src/settings`.

A key changes *live* when the file is read again (`longhaul box reload`), or with a *restart*.
"
    .to_string();
    section::<Acceleration>("accelerate", &mut text);
    section::<Emulation>("emulate", &mut text);
    text
}

fn section<S: Table + Args>(command: &str, text: &mut String) {
    let flags = S::augment_args(clap::Command::new("settings"));
    // Writing to a `String` cannot fail.
    let _ = write!(
        text,
        "\n## longhaul {command}\n\n| key | flag | in a file | changes | meaning \
         |\n|---|---|---|---|---|\n"
    );
    for key in S::KEYS {
        let _ = writeln!(text, "{}", row(key, &flags));
    }
}

fn row<S>(key: &Key<S>, flags: &clap::Command) -> String {
    let flag = flags.get_arguments().find(|flag| flag.get_id() == key.name);
    let help = flag.and_then(|flag| flag.get_help());
    let mut meaning = help.map_or_else(
        || "rules that precede `mode`: [semantics](semantics.md)".to_string(),
        |help| help.to_string().replace('|', "\\|"),
    );
    let others = key.given_with.iter().filter(|other| **other != key.name);
    for other in others {
        meaning += &format!(". Also overrides `{other}` of lower precedence");
    }
    format!(
        "| `{}` | {} | {} | {} | {meaning} |",
        key.name,
        flag.map_or_else(|| "none".to_string(), written),
        key.form,
        match key.changes {
            Changes::Live => "live",
            Changes::LiveWithoutTransport => "live without `transport`",
            Changes::Restart => "restart",
        },
    )
}

/// A flag with its value, as in help.
fn written(flag: &clap::Arg) -> String {
    let name = flag.get_long().unwrap_or_default();
    if !flag.get_action().takes_values() {
        return format!("`--{name}`");
    }
    let default = flag.get_id().as_str().to_uppercase();
    let value = flag.get_value_names().and_then(|names| names.first());
    let value = value.map_or(default, |value| value.replace('|', "\\|"));
    format!("`--{name} {value}`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");

    #[test]
    fn the_page_has_every_key_as_its_table_has_it() {
        if std::env::var_os("LONGHAUL_WRITE_DOCS").is_some() {
            fs::write(PAGE, reference()).unwrap();
        }
        let page = fs::read_to_string(PAGE).unwrap_or_default();
        let again = "regenerate it: LONGHAUL_WRITE_DOCS=1 cargo test -p longhaul-boxes reference";
        assert!(page == reference(), "docs/settings.md does not match the tables; {again}");
    }

    #[test]
    fn every_key_has_a_flag_of_its_name_and_help() {
        fn check<S: Table + Args>(without_flag: &[&str]) {
            let flags = S::augment_args(clap::Command::new("settings"));
            for key in S::KEYS {
                let flag = flags.get_arguments().find(|flag| flag.get_id() == key.name);
                let named = flag.and_then(clap::Arg::get_long).map(|long| long.replace('-', "_"));
                let wanted = (!without_flag.contains(&key.name)).then(|| key.name.to_string());
                assert_eq!(named, wanted);
                assert!(flag.is_none_or(|flag| flag.get_help().is_some()), "{}", key.name);
            }
            assert_eq!(flags.get_arguments().count() + without_flag.len(), S::KEYS.len());
        }
        check::<Acceleration>(&["policy"]);
        check::<Emulation>(&[]);
    }
}
