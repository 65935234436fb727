//! The known keys, and the kinds of their values.

use super::quantity::ValueKind;

/// Keys of a table.
pub(super) type Keys = &'static [(&'static str, ValueKind)];

/// Maximum bytes of memory.
const MEMORY: u64 = 1 << 50;
const FOREVER: u64 = u64::MAX;

/// Keys outside of tables.
pub(super) const TOP: Keys = &[
    ("name", ValueKind::Text),
    ("about", ValueKind::Text),
    ("seed", ValueKind::Count(0, FOREVER)),
    ("time_max", ValueKind::Time),
    ("warmup", ValueKind::Time),
    ("train_packets", ValueKind::Count(1, 1024)),
];

/// `[path]`: two hosts and the fibre between them.
pub(super) const PATH: Keys = &[
    ("distance", ValueKind::Distance),
    ("delay", ValueKind::Time),
    ("extra_delay", ValueKind::Time),
    ("rate", ValueKind::Rate),
    ("loss", ValueKind::Probability),
    ("loss_burst", ValueKind::Count(1, 1_000_000_000)),
    ("loss_in_burst", ValueKind::Probability),
    ("loss_direction", ValueKind::Choice(LOSS_DIRECTIONS)),
    ("cut_at", ValueKind::Time),
    ("cut_for", ValueKind::Time),
    ("cut_every", ValueKind::Time),
    ("reorder", ValueKind::Probability),
    ("reorder_delay", ValueKind::Time),
    ("duplicate", ValueKind::Probability),
    ("corrupt", ValueKind::Probability),
    ("rule", ValueKind::Text),
    ("at", ValueKind::Text),
    ("queue", ValueKind::Size(MEMORY)),
    ("ecn", ValueKind::Ecn),
    ("record", ValueKind::Text),
    ("accelerators", ValueKind::Choice(&["none", "near", "far", "both"])),
    ("paired", ValueKind::Flag),
    ("lan_delay", ValueKind::Time),
    ("lan_rule", ValueKind::Text),
    ("nic", ValueKind::Nic),
    ("pfc", ValueKind::Choice(SWITCHED)),
    ("dcqcn", ValueKind::Choice(SWITCHED)),
    ("receive_packet", ValueKind::Time),
    ("receive_buffer", ValueKind::Size(MEMORY)),
    ("srq", SRQ),
    ("egress_rate", ValueKind::Rate),
    ("accelerator", ValueKind::Accelerator),
];

/// `[[host]]`.
pub(super) const HOST: Keys = &[
    ("name", ValueKind::Name),
    ("nic", ValueKind::Nic),
    ("pfc", ValueKind::Choice(SWITCHED)),
    ("dcqcn", ValueKind::Choice(SWITCHED)),
    ("receive_packet", ValueKind::Time),
    ("receive_buffer", ValueKind::Size(MEMORY)),
    ("srq", SRQ),
    ("egress_rate", ValueKind::Rate),
];

/// `[[accelerator]]`, and, but for the name, `[path.accelerator]`.
pub(super) const ACCELERATOR: Keys = &[
    ("name", ValueKind::Name),
    ("rate", ValueKind::Rate),
    ("lan_rate", ValueKind::Rate),
    ("window", ValueKind::Size(MEMORY)),
    ("store", ValueKind::Size(MEMORY)),
    ("memory", ValueKind::Size(MEMORY)),
    ("psns", ValueKind::Count(1, 1 << 22)),
    ("flows", ValueKind::Count(1, 1 << 20)),
    ("passthrough", ValueKind::Size(MEMORY)),
    ("ack_every", ValueKind::Count(1, 128)),
    ("ack_hold", ValueKind::Time),
    ("rto_min", ValueKind::Time),
    ("give_up", ValueKind::Time),
    ("mode", ValueKind::Choice(&["early", "far", "tail", "off"])),
    ("role", ValueKind::Choice(&["near", "far"])),
    ("transport", ValueKind::Flag),
    ("parity", ValueKind::Choice(&["off", "adaptive", "always"])),
    ("wan_rate", ValueKind::Choice(&["link", "port", "adaptive"])),
    ("send_memory", ValueKind::Size(MEMORY)),
    ("receive_memory", ValueKind::Size(MEMORY)),
    ("key", ValueKind::Name),
    ("peer", ValueKind::Texts),
    ("psk", ValueKind::Texts),
    ("clear", ValueKind::Texts),
    ("key_optional", ValueKind::Flag),
    ("read_ahead", ValueKind::Texts),
];

/// `[[switch]]`.
pub(super) const SWITCH: Keys = &[
    ("name", ValueKind::Name),
    ("ports", ValueKind::Count(2, longhaul_switch::PORTS_MAX as u64)),
    ("rate", ValueKind::Rate),
    ("queue", ValueKind::Size(MEMORY)),
    ("ecn", ValueKind::Ecn),
    ("pfc", ValueKind::Choice(SWITCHED)),
    ("pfc_xoff", ValueKind::Size(MEMORY)),
    ("pfc_xon", ValueKind::Size(MEMORY)),
    ("pfc_headroom", ValueKind::Size(MEMORY)),
    ("pfc_buffer", ValueKind::Size(MEMORY)),
    ("pfc_alpha", ValueKind::Factor),
    ("ets_share", ValueKind::Count(1, 99)),
];

/// `[[link]]`.
pub(super) const LINK: Keys = &[
    ("name", ValueKind::Name),
    ("between", ValueKind::Ends),
    ("distance", ValueKind::Distance),
    ("delay", ValueKind::Time),
    ("extra_delay", ValueKind::Time),
    ("rate", ValueKind::Rate),
    ("loss", ValueKind::Probability),
    ("loss_burst", ValueKind::Count(1, 1_000_000_000)),
    ("loss_in_burst", ValueKind::Probability),
    ("loss_direction", ValueKind::Choice(LOSS_DIRECTIONS)),
    ("cut_at", ValueKind::Time),
    ("cut_for", ValueKind::Time),
    ("cut_every", ValueKind::Time),
    ("reorder", ValueKind::Probability),
    ("reorder_delay", ValueKind::Time),
    ("duplicate", ValueKind::Probability),
    ("corrupt", ValueKind::Probability),
    ("rule", ValueKind::Text),
    ("at", ValueKind::Text),
    ("queue", ValueKind::Size(MEMORY)),
    ("ecn", ValueKind::Ecn),
    ("record", ValueKind::Text),
];

/// Receives of a shared receive queue: what the RNIC admits.
const SRQ: ValueKind = ValueKind::Count(1, 1 << 17);
const SWITCHED: &[&str] = &["off", "on"];
const LOSS_DIRECTIONS: &[&str] = &["both", "forward", "backward"];

/// `[[flow]]`.
pub(super) const FLOW: Keys = &[
    ("name", ValueKind::Name),
    ("from", ValueKind::Name),
    ("to", ValueKind::Name),
    ("op", ValueKind::Choice(&["write", "write_imm", "send", "read", "atomic"])),
    ("test", ValueKind::Choice(&["bandwidth", "latency", "storage", "migration"])),
    ("size", ValueKind::Size(longhaul_rnic::MESSAGE_MAX)),
    ("transport", ValueKind::Choice(&["rc", "uc"])),
    ("events", ValueKind::Choice(&["off", "all", "solicited"])),
    ("dscp", ValueKind::Count(0, 63)),
    ("qps", ValueKind::Count(1, 1 << 20)),
    ("mtu", ValueKind::Count(256, 4096)),
    ("tx_depth", ValueKind::Count(1, 1 << 24)),
    ("rx_depth", ValueKind::Count(1, 1 << 24)),
    ("post_list", ValueKind::Count(1, 1 << 24)),
    ("cq_mod", ValueKind::Count(1, 1 << 24)),
    ("iterations", ValueKind::Count(1, FOREVER)),
    ("duration", ValueKind::Time),
    ("start", ValueKind::Time),
    ("in_capsule", ValueKind::Count(0, longhaul_rnic::MESSAGE_MAX)),
    ("target_cores", ValueKind::Count(1, 4096)),
    ("command_time", ValueKind::Time),
    ("drive_rate", ValueKind::Rate),
    ("drive_latency", ValueKind::Time),
    ("setup", ValueKind::Time),
    ("disk", ValueKind::Amount(MEMORY)),
    ("disk_rate", ValueKind::Rate),
    ("memory", ValueKind::Size(MEMORY)),
    ("memory_rate", ValueKind::Rate),
    ("working_set", ValueKind::Amount(MEMORY)),
    ("dirty_rate", ValueKind::Rate),
    ("dirty_pause", ValueKind::Time),
    ("downtime_limit", ValueKind::Time),
    ("timeout", ValueKind::Time),
    ("connect", ValueKind::Choice(&["out-of-band", "cm"])),
    ("listen", ValueKind::Flag),
    ("count", ValueKind::Count(1, 4096)),
];

/// Up to one minute in ns, longer than any operation of a NIC.
const NS: ValueKind = ValueKind::Count(0, 60_000_000_000);

/// A NIC's profile; in a scenario `profile` names its base.
pub(super) const NIC: Keys = &[
    ("profile", ValueKind::Text),
    ("name", ValueKind::Text),
    ("about", ValueKind::Text),
    ("rate_bps", ValueKind::Rate),
    ("outstanding_wqes", ValueKind::Count(1, u32::MAX as u64)),
    ("outstanding_reads", ValueKind::Count(1, 128)),
    ("outstanding_psns", ValueKind::Count(1, 1 << 23)),
    ("ack_request_every", ValueKind::Count(1, 1 << 23)),
    ("ack_every", ValueKind::Count(1, 1 << 23)),
    ("message_ns", NS),
    ("packet_ns", NS),
    ("doorbell_ns", NS),
    ("completion_ns", NS),
    ("responder_ns", NS),
    ("post_ns", NS),
    ("poll_ns", NS),
    ("list_ns", NS),
    ("event_ns", NS),
    ("wakeup_ns", NS),
    ("switch_ns", NS),
    ("search_ps", NS),
    ("srq_message_ns", NS),
    ("timeout_code", ValueKind::Count(0, 31)),
    ("retry_count", ValueKind::Count(0, 7)),
    ("adaptive_retransmission", ValueKind::Flag),
    ("adaptive_first_ns", ValueKind::Count(1, 60_000_000_000)),
];

/// Tables of the document: name, keys, and whether there may be several.
pub(super) const TABLES: &[(&str, Keys, bool)] = &[
    ("path", PATH, false),
    ("host", HOST, true),
    ("accelerator", ACCELERATOR, true),
    ("switch", SWITCH, true),
    ("link", LINK, true),
    ("flow", FLOW, true),
];

/// A key's kind.
pub(super) fn kind(keys: Keys, key: &str) -> Option<ValueKind> {
    keys.iter().find(|(known, _)| *known == key).map(|(_, kind)| *kind)
}

/// Message for an unknown word: the most similar known ones, or all.
pub(super) fn suggest<'a>(
    word: &str,
    known: impl Iterator<Item = &'a str>,
    otherwise: &str,
) -> String {
    let known: Vec<&str> = known.collect();
    let nearest = known.iter().min_by_key(|known| strsim::damerau_levenshtein(word, known));
    let distance = nearest.map_or(usize::MAX, |nearest| strsim::damerau_levenshtein(word, nearest));
    match nearest {
        // Less than half of it differs.
        Some(nearest) if distance.saturating_mul(2) < word.chars().count() => {
            format!("not known; did you mean '{nearest}'?")
        }
        _ => format!("{otherwise} {}", known.join(", ")),
    }
}
