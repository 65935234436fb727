//! Which keys there are, and what each takes.

use super::quantity::Kind;

/// Keys of a table.
pub(super) type Keys = &'static [(&'static str, Kind)];

/// Bytes of memory that may be spoken of.
const MEMORY: u64 = 1 << 50;
const FOREVER: u64 = u64::MAX;

/// What stands outside of any table.
pub(super) const TOP: Keys = &[
    ("name", Kind::Text),
    ("about", Kind::Text),
    ("seed", Kind::Count(0, FOREVER)),
    ("time_max", Kind::Time),
    ("train_packets", Kind::Count(1, 1024)),
];

/// `[path]`: two hosts and what is between them.
pub(super) const PATH: Keys = &[
    ("distance", Kind::Distance),
    ("delay", Kind::Time),
    ("extra_delay", Kind::Time),
    ("rate", Kind::Rate),
    ("loss", Kind::Probability),
    ("loss_burst", Kind::Count(1, 1_000_000_000)),
    ("loss_in_burst", Kind::Probability),
    ("loss_direction", Kind::Choice(LOSS_DIRECTIONS)),
    ("cut_at", Kind::Time),
    ("cut_for", Kind::Time),
    ("cut_every", Kind::Time),
    ("reorder", Kind::Probability),
    ("reorder_delay", Kind::Time),
    ("duplicate", Kind::Probability),
    ("corrupt", Kind::Probability),
    ("rule", Kind::Text),
    ("at", Kind::Text),
    ("queue", Kind::Size(MEMORY)),
    ("ecn", Kind::Ecn),
    ("record", Kind::Text),
    ("accelerators", Kind::Choice(&["none", "near", "far", "both"])),
    ("paired", Kind::Flag),
    ("lan_delay", Kind::Time),
    ("nic", Kind::Nic),
    ("pfc", Kind::Choice(SWITCHED)),
    ("dcqcn", Kind::Choice(SWITCHED)),
    ("receive_packet", Kind::Time),
    ("receive_buffer", Kind::Size(MEMORY)),
    ("accelerator", Kind::Accelerator),
];

/// `[[host]]`.
pub(super) const HOST: Keys = &[
    ("name", Kind::Name),
    ("nic", Kind::Nic),
    ("pfc", Kind::Choice(SWITCHED)),
    ("dcqcn", Kind::Choice(SWITCHED)),
    ("receive_packet", Kind::Time),
    ("receive_buffer", Kind::Size(MEMORY)),
];

/// `[[accelerator]]`, and, but for the name, `[path.accelerator]`.
pub(super) const ACCELERATOR: Keys = &[
    ("name", Kind::Name),
    ("rate", Kind::Rate),
    ("lan_rate", Kind::Rate),
    ("window", Kind::Size(MEMORY)),
    ("store", Kind::Size(MEMORY)),
    ("memory", Kind::Size(MEMORY)),
    ("psns", Kind::Count(1, 1 << 22)),
    ("flows", Kind::Count(1, 1 << 20)),
    ("passthrough", Kind::Size(MEMORY)),
    ("ack_every", Kind::Count(1, 128)),
    ("ack_hold", Kind::Time),
    ("rto_min", Kind::Time),
    ("give_up", Kind::Time),
    ("mode", Kind::Choice(&["early", "far", "tail", "off"])),
    ("role", Kind::Choice(&["near", "far"])),
    ("transport", Kind::Flag),
    ("parity", Kind::Choice(&["off", "adaptive", "always"])),
    ("wan_rate", Kind::Choice(&["link", "port", "adaptive"])),
    ("send_memory", Kind::Size(MEMORY)),
    ("receive_memory", Kind::Size(MEMORY)),
];

/// `[[switch]]`.
pub(super) const SWITCH: Keys = &[
    ("name", Kind::Name),
    ("ports", Kind::Count(2, longhaul_switch::PORTS_MAX as u64)),
    ("rate", Kind::Rate),
    ("queue", Kind::Size(MEMORY)),
    ("ecn", Kind::Ecn),
    ("pfc", Kind::Choice(SWITCHED)),
    ("pfc_xoff", Kind::Size(MEMORY)),
    ("pfc_xon", Kind::Size(MEMORY)),
    ("pfc_headroom", Kind::Size(MEMORY)),
    ("pfc_buffer", Kind::Size(MEMORY)),
];

/// `[[link]]`.
pub(super) const LINK: Keys = &[
    ("name", Kind::Name),
    ("between", Kind::Ends),
    ("distance", Kind::Distance),
    ("delay", Kind::Time),
    ("extra_delay", Kind::Time),
    ("rate", Kind::Rate),
    ("loss", Kind::Probability),
    ("loss_burst", Kind::Count(1, 1_000_000_000)),
    ("loss_in_burst", Kind::Probability),
    ("loss_direction", Kind::Choice(LOSS_DIRECTIONS)),
    ("cut_at", Kind::Time),
    ("cut_for", Kind::Time),
    ("cut_every", Kind::Time),
    ("reorder", Kind::Probability),
    ("reorder_delay", Kind::Time),
    ("duplicate", Kind::Probability),
    ("corrupt", Kind::Probability),
    ("rule", Kind::Text),
    ("at", Kind::Text),
    ("queue", Kind::Size(MEMORY)),
    ("ecn", Kind::Ecn),
    ("record", Kind::Text),
];

const SWITCHED: &[&str] = &["off", "on"];
const LOSS_DIRECTIONS: &[&str] = &["both", "forward", "backward"];

/// `[[flow]]`.
pub(super) const FLOW: Keys = &[
    ("name", Kind::Name),
    ("from", Kind::Name),
    ("to", Kind::Name),
    ("op", Kind::Choice(&["write", "write_imm", "send", "read", "atomic"])),
    ("test", Kind::Choice(&["bandwidth", "latency"])),
    ("size", Kind::Size(longhaul_rnic::MESSAGE_MAX)),
    ("qps", Kind::Count(1, 1 << 20)),
    ("mtu", Kind::Count(256, 4096)),
    ("tx_depth", Kind::Count(1, 1 << 24)),
    ("rx_depth", Kind::Count(1, 1 << 24)),
    ("post_list", Kind::Count(1, 1 << 24)),
    ("cq_mod", Kind::Count(1, 1 << 24)),
    ("iterations", Kind::Count(1, FOREVER)),
    ("duration", Kind::Time),
    ("start", Kind::Time),
    ("connect", Kind::Choice(&["out-of-band", "cm"])),
    ("listen", Kind::Flag),
    ("count", Kind::Count(1, 4096)),
];

/// A minute in nanoseconds; no NIC takes as long for anything.
const NS: Kind = Kind::Count(0, 60_000_000_000);

/// A NIC's profile; in a scenario with `profile` for what it starts from.
pub(super) const NIC: Keys = &[
    ("profile", Kind::Text),
    ("name", Kind::Text),
    ("about", Kind::Text),
    ("rate_bps", Kind::Rate),
    ("outstanding_wqes", Kind::Count(1, u32::MAX as u64)),
    ("outstanding_reads", Kind::Count(1, 128)),
    ("outstanding_psns", Kind::Count(1, 1 << 23)),
    ("ack_request_every", Kind::Count(1, 1 << 23)),
    ("ack_every", Kind::Count(1, 1 << 23)),
    ("message_ns", NS),
    ("packet_ns", NS),
    ("doorbell_ns", NS),
    ("completion_ns", NS),
    ("responder_ns", NS),
    ("post_ns", NS),
    ("poll_ns", NS),
    ("timeout_code", Kind::Count(0, 31)),
    ("retry_count", Kind::Count(0, 7)),
    ("adaptive_retransmission", Kind::Flag),
    ("adaptive_first_ns", Kind::Count(1, 60_000_000_000)),
];

/// A table of the document: its name, its keys, and whether there may be several of it.
pub(super) const TABLES: &[(&str, Keys, bool)] = &[
    ("path", PATH, false),
    ("host", HOST, true),
    ("accelerator", ACCELERATOR, true),
    ("switch", SWITCH, true),
    ("link", LINK, true),
    ("flow", FLOW, true),
];

/// A key's kind.
pub(super) fn kind(keys: Keys, key: &str) -> Option<Kind> {
    keys.iter().find(|(known, _)| *known == key).map(|(_, kind)| *kind)
}

/// What to say of a word that is not among those known: the nearest of them, or all.
pub(super) fn suggest<'a>(
    word: &str,
    known: impl Iterator<Item = &'a str>,
    otherwise: &str,
) -> String {
    let known: Vec<&str> = known.collect();
    let nearest = known.iter().min_by_key(|known| strsim::damerau_levenshtein(word, known));
    let distance = nearest.map_or(usize::MAX, |nearest| strsim::damerau_levenshtein(word, nearest));
    match nearest {
        // Less than half of it is wrong.
        Some(nearest) if distance.saturating_mul(2) < word.chars().count() => {
            format!("not known; did you mean '{nearest}'?")
        }
        _ => format!("{otherwise} {}", known.join(", ")),
    }
}
