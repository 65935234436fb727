//! NIC profiles: built-in ones, files, and changes to either.

use super::fields::Fields;
use super::schema::{NIC, suggest};
use super::tree::{self, Node, SourceLocation, Table, Value};
use super::{FileError, Read};
use crate::profile::NicProfile;

/// Built-in profiles: the data files of labs/nics.
const FILES: [(&str, &str); 7] = [
    ("connectx6", include_str!("../../../labs/nics/connectx6.toml")),
    ("connectx6-adaptive", include_str!("../../../labs/nics/connectx6-adaptive.toml")),
    ("connectx6-apn", include_str!("../../../labs/nics/connectx6-apn.toml")),
    ("rxe", include_str!("../../../labs/nics/rxe.toml")),
    ("longhaul", include_str!("../../../labs/nics/longhaul.toml")),
    ("ideal", include_str!("../../../labs/nics/ideal.toml")),
    ("das6", include_str!("../../../labs/nics/das6.toml")),
];

/// Default profile of a host.
const DEFAULT: &str = "connectx6";

impl NicProfile {
    /// Names of the built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FILES.into_iter().map(|(name, _)| name)
    }

    /// Returns a built-in profile.
    ///
    /// # Errors
    /// There is no profile of that name; the error lists the known ones.
    pub fn named(name: &str) -> Result<Self, FileError> {
        let place = SourceLocation::Given(format!("NIC '{name}'"));
        let base = base(name, &place, &mut |file| Err(format!("{file} is not read here")))?;
        profile(&base, &place)
    }
}

/// Reads a `nic` key.
pub(super) fn read(
    nic: Option<&Node>,
    place: &SourceLocation,
    files: &mut Read<'_>,
) -> Result<NicProfile, FileError> {
    let Some(node) = nic else {
        return profile(&base(DEFAULT, place, files)?, place);
    };
    match &node.value {
        Value::Text(name) => profile(&base(name, &node.place, files)?, &node.place),
        Value::Table(changes) => {
            // Check the changes before they are merged, so that errors name their place.
            Fields::of_table(changes, &node.place, "nic", NIC)?;
            let mut table = match changes.get("profile") {
                Some(entry) => match &entry.node.value {
                    Value::Text(name) => base(name, &entry.node.place, files)?,
                    other => {
                        return Err(entry
                            .node
                            .place
                            .error(format!("{} is no profile", other.kind())));
                    }
                },
                None => base(DEFAULT, &node.place, files)?,
            };
            for entry in changes.entries.iter().filter(|entry| entry.key != "profile") {
                table.set(&entry.key, entry.node.clone());
            }
            profile(&table, &node.place)
        }
        other => {
            let wanted = "the name of a NIC profile, a file's name ending in .toml, or a table";
            Err(node.place.error(format!("nic is {}, not {wanted}", other.kind())))
        }
    }
}

/// Returns a profile's table, by name, or from a file if the name looks like one.
fn base(name: &str, place: &SourceLocation, files: &mut Read<'_>) -> Result<Table, FileError> {
    if name.ends_with(".toml") {
        let text =
            files(name).map_err(|why| place.error(format!("the NIC profile {name}: {why}")))?;
        return tree::parse(name, &text);
    }
    match FILES.into_iter().find(|(known, _)| *known == name) {
        Some((known, text)) => tree::parse(&format!("labs/nics/{known}.toml"), text),
        None => {
            let known = suggest(name, NicProfile::names(), "none of");
            Err(place
                .error(format!("the NIC profile '{name}' is {known}; a file's name ends in .toml")))
        }
    }
}

/// Every key is required, because a missing limit would read as no limit.
fn profile(table: &Table, place: &SourceLocation) -> Result<NicProfile, FileError> {
    let fields = Fields::of_table(table, place, "a NIC profile", NIC)?;
    let missing = NIC.iter().map(|(key, _)| *key).find(|key| *key != "profile" && !fields.has(key));
    if let Some(key) = missing {
        let place = table.entries.first().map_or(place, |entry| &entry.place);
        return Err(
            place.error(format!("this NIC profile has no '{key}': every key must be there"))
        );
    }
    let text = |key| fields.text(key).unwrap_or_default().to_owned();
    let whole = |key| fields.whole(key).unwrap_or_default();
    let number = |key| fields.number(key).unwrap_or_default();
    let small = |key| u8::try_from(whole(key)).unwrap_or(u8::MAX);
    Ok(NicProfile {
        name: text("name"),
        about: text("about"),
        rate_bps: whole("rate_bps"),
        outstanding_wqes: number("outstanding_wqes"),
        outstanding_reads: small("outstanding_reads"),
        outstanding_psns: number("outstanding_psns"),
        ack_request_every: number("ack_request_every"),
        ack_every: number("ack_every"),
        message_ns: whole("message_ns"),
        packet_ns: whole("packet_ns"),
        doorbell_ns: whole("doorbell_ns"),
        completion_ns: whole("completion_ns"),
        responder_ns: whole("responder_ns"),
        post_ns: whole("post_ns"),
        poll_ns: whole("poll_ns"),
        list_ns: whole("list_ns"),
        event_ns: whole("event_ns"),
        wakeup_ns: whole("wakeup_ns"),
        switch_ns: whole("switch_ns"),
        search_ps: whole("search_ps"),
        srq_message_ns: whole("srq_message_ns"),
        timeout_code: small("timeout_code"),
        retry_count: small("retry_count"),
        adaptive_retransmission: fields.flag("adaptive_retransmission").unwrap_or_default(),
        adaptive_first_ns: whole("adaptive_first_ns"),
        ..NicProfile::default()
    })
}
