//! State of the transport between two boxes, as text and as JSON.
#![allow(missing_docs, reason = "fields are the keys of the JSON, which has them by these names")]

use super::{Named, named, nonzero};
use crate::figures::{bytes, count, gigabits, measured_fraction, microseconds};
use longhaul_seal::{Cleartext, NoKeys, PeerStatus, Seal, Trouble};
use longhaul_units::Instant;
use longhaul_wan::{FarStatus, PathStatus, Refusal, SessionStatus, Transport, VERSION};
use serde::{Deserialize, Serialize};
use std::fmt::{Result, Write};

/// State of the transport between this box and others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TransportState {
    pub counters: Named,
    pub drops: Named,
    /// Why there is no session with the last box that was refused, or that refused this one.
    pub refused: Option<String>,
    pub sessions: Vec<SessionState>,
    /// Configured far boxes.
    #[serde(default)]
    pub far: Vec<FarState>,
    /// The seal, if any.
    #[serde(default)]
    pub seal: Option<SealState>,
}

/// A configured far box.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FarState {
    pub prefix: String,
    /// Address that the box asks for instead of the prefix's addresses; none: it asks for each
    /// address.
    pub via: Option<String>,
    /// Boxes that answered for it.
    pub reached: Vec<String>,
    /// Some requests have no answer.
    pub is_silent: bool,
}

impl FarState {
    fn of(status: FarStatus) -> Self {
        FarState {
            prefix: status.far.prefix.to_string(),
            via: status.far.via.map(|via| via.to_string()),
            reached: status.reached.iter().map(|id| format!("{id:016x}")).collect(),
            is_silent: status.is_silent,
        }
    }

    /// A description; `fate` says what happens to traffic without a far box.
    fn outcome(&self, fate: &str) -> String {
        match (&self.reached[..], self.is_silent) {
            ([], false) => "not asked yet: this box asks when hosts send there".to_string(),
            ([], true) => format!("no answer: its traffic {fate}"),
            (reached, false) => format!("reached: {}", reached.join(", ")),
            (reached, true) => {
                format!("reached: {}; for some of its addresses no answer", reached.join(", "))
            }
        }
    }
}

/// State of the seal between this box and others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SealState {
    /// Public key of this box.
    pub public_key: String,
    pub peers: Vec<PeerState>,
    /// RDMA traffic that may cross the WAN in cleartext: `none`, `any`, or prefixes.
    #[serde(default)]
    pub in_the_clear: String,
    /// Why there are no keys with boxes that are reachable.
    #[serde(default)]
    pub troubles: Vec<String>,
    pub counters: Named,
    pub drops: Named,
}

/// A box with a known key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerState {
    pub name: String,
    pub public_key: String,
    /// Cipher of the keys in use, if any.
    pub cipher: Option<String>,
    pub key_age_s: Option<f64>,
    pub handshakes: u64,
    #[serde(default)]
    pub is_shaking_hands: bool,
}

/// The trouble and its cure.
fn trouble(trouble: &Trouble) -> String {
    let (name, why) = match trouble {
        Trouble::UnknownKey { address } => {
            return format!(
                "the box at {address} has a key that is none of the peers': compare \
                 --peer with what 'longhaul key show' prints there"
            );
        }
        Trouble::Peer { name, why } => (name, why),
    };
    let why = match why {
        NoKeys::Unanswered => {
            "is there and answers no handshake: compare its --peer with what 'longhaul key show' \
             prints here"
        }
        NoKeys::PresharedKey => {
            "has another pre-shared key, or none: give both boxes the same --psk"
        }
        NoKeys::Unfinished => {
            "begins handshakes and does not finish them: give both boxes the same --psk"
        }
        NoKeys::Cipher => "has no cipher in common with this box: update the older one",
    };
    format!("peer {name} {why}")
}

impl SealState {
    /// Converts the seal's status.
    pub fn of(seal: &Seal, now: Instant) -> Self {
        let counters = seal.counters();
        let peer = |peer: PeerStatus| PeerState {
            name: peer.name,
            public_key: peer.public_key.to_string(),
            cipher: peer.keys.map(|keys| keys.cipher.name().to_string()),
            key_age_s: peer.keys.map(|keys| keys.age.as_secs_f64()),
            handshakes: peer.handshakes,
            is_shaking_hands: peer.is_shaking_hands,
        };
        SealState {
            in_the_clear: match &seal.config().cleartext {
                Cleartext::Any => "any".to_string(),
                Cleartext::Of(prefixes) if prefixes.is_empty() => "none".to_string(),
                Cleartext::Of(prefixes) => {
                    prefixes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
                }
            },
            troubles: seal.troubles(now).iter().map(trouble).collect(),
            public_key: seal.public_key().to_string(),
            peers: seal.peers(now).map(peer).collect(),
            counters: named(counters.values()),
            drops: named(counters.drops.iter().map(|(reason, n)| (reason.name(), n))),
        }
    }
}

/// A session with a far box. Bytes are bytes of memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionState {
    pub far_box: String,
    /// Session number; it changes when either box restarts.
    #[serde(default)]
    pub name: u32,
    pub is_open: bool,
    pub streams_out: usize,
    pub streams_in: usize,
    pub send_bytes: u64,
    pub send_bytes_peak: u64,
    pub receive_bytes: u64,
    pub receive_bytes_peak: u64,
    pub far_room_bytes: u64,
    pub paths: Vec<PathState>,
}

/// A path to a far box.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PathState {
    pub is_up: bool,
    /// Smoothed RTT, once measured.
    pub rtt_us: Option<f64>,
    /// Lost fraction of transmissions, 0 to 1.
    pub loss: f64,
    pub in_flight: u64,
    pub copies: u8,
    pub sent: u64,
    pub lost: u64,
    pub outages: u64,
    /// Fraction that stays lost after repair.
    #[serde(default)]
    pub residual: f64,
    /// Layout of the parity, as "20+2 ×8".
    #[serde(default)]
    pub parity: String,
    #[serde(default)]
    pub parity_sent: u64,
    /// Transmissions that the far box repaired by parity.
    #[serde(default)]
    pub repaired: u64,
    /// Pacing rate; none: as fast as the port takes frames.
    #[serde(default)]
    pub rate_bps: Option<u64>,
    /// Rate that the bottleneck delivers, if the rate adapts.
    #[serde(default)]
    pub delivered_bps: Option<u64>,
    /// Queueing delay at the bottleneck, if the rate adapts.
    #[serde(default)]
    pub queue_us: Option<f64>,
    /// The limit of the rate.
    #[serde(default)]
    pub limited_by: String,
    /// Longest IP packet that is known to fit the path, in bytes, including the box's headers.
    #[serde(default)]
    pub mtu: u16,
    /// The search for a longer one has ended.
    #[serde(default)]
    pub mtu_is_settled: bool,
    /// Frames, and parts of frames, that were split because they exceed the path's MTU.
    #[serde(default)]
    pub split: u64,
    /// Times the path stopped delivering long packets.
    #[serde(default)]
    pub black_holes: u64,
    /// Greatest RoCE MTU whose packets fit whole; none: no packet does.
    #[serde(default)]
    pub roce_mtu: Option<u16>,
}

impl TransportState {
    /// The reason why no far box is reached.
    pub fn not_ready(&self) -> Option<String> {
        if self
            .sessions
            .iter()
            .any(|session| session.is_open && session.paths.iter().any(|path| path.is_up))
        {
            return None;
        }
        if let Some(trouble) = self.seal.iter().flat_map(|seal| &seal.troubles).next() {
            return Some(trouble.clone());
        }
        Some(match (&self.refused, self.sessions.iter().find(|session| session.is_open)) {
            (Some(refused), _) => format!("no far box is reached; refused {refused}"),
            (None, Some(session)) => format!("every path to box {} is out", session.far_box),
            (None, None) => {
                "no far box has answered yet: this box looks for it when hosts send to its site"
                    .to_string()
            }
        })
    }

    /// The treatment of traffic that no far box serves.
    fn fate(&self) -> &'static str {
        match &self.seal {
            Some(seal) if seal.in_the_clear != "any" => "is dropped if it is RDMA (--key)",
            _ => "passes through",
        }
    }

    /// Warnings with cures: far boxes that do not answer or were refused, and paths with too small
    /// an MTU.
    pub fn news(&self) -> Vec<String> {
        let troubles: Vec<String> =
            self.seal.iter().flat_map(|seal| seal.troubles.clone()).collect();
        // A reachable box has its own line, now or once its handshake has failed.
        let is_there = |seal: &SealState| seal.peers.iter().any(|peer| peer.is_shaking_hands);
        let is_known = !troubles.is_empty() || self.seal.as_ref().is_some_and(is_there);
        let silent =
            self.far.iter().filter(|far| !is_known && far.is_silent && far.reached.is_empty());
        let fate = self.fate();
        let mut news: Vec<String> = silent
            .map(|far| {
                let at = far.via.as_deref().unwrap_or("any of its addresses");
                format!(
                    "no far box answers for {} at {at}: its traffic {fate}; this box asks again",
                    far.prefix
                )
            })
            .chain(troubles)
            .collect();
        if let Some(refused) = &self.refused {
            news.push(format!("its traffic {fate}: no session with {refused}"));
        }
        if let Some(astray) = self.counters.get("streams_astray").filter(|count| **count > 0) {
            news.push(format!(
                "no frame of {astray} streams reaches the far box although its paths are up: these \
                 streams pass through; if another box shares its site (ECMP), route all packets of \
                 a site through one box"
            ));
        }
        for session in &self.sessions {
            for (number, path) in (1..).zip(&session.paths) {
                if path.split == 0 || !path.mtu_is_settled || !path.is_up {
                    continue;
                }
                let cure = match path.roce_mtu {
                    Some(most) => format!("an RoCE MTU of {most} on the hosts avoids that"),
                    None => "no RoCE MTU avoids that".to_string(),
                };
                news.push(format!(
                    "path {number} to box {} takes IP packets of {} bytes: the box splits longer \
                     frames, which costs some of the path's rate; {cure}, or a greater MTU on the \
                     path",
                    session.far_box, path.mtu,
                ));
            }
        }
        news
    }

    /// Converts the status of a transport and its seal.
    pub fn of(transport: &Transport, seal: Option<SealState>) -> Self {
        let counters = transport.counters();
        TransportState {
            counters: named(counters.values()),
            drops: named(counters.drops.iter().map(|(reason, n)| (reason.name(), n))),
            refused: transport.refused().map(|refused| {
                let (least, most) = refused.versions;
                let (its, own) = (refused.cores, transport.config().cores);
                let why = match refused.reason {
                    Refusal::Cores => {
                        format!(
                            "it has {its} cores, and this one {own}: give both the same --cores"
                        )
                    }
                    reason => format!(
                        "{reason}; it speaks versions {least} to {most}, this box {VERSION}"
                    ),
                };
                format!("box {:016x}: {why}", refused.box_id)
            }),
            sessions: transport
                .sessions()
                .map(|session| SessionState::of(session, seal.is_some()))
                .collect(),
            far: transport.far().into_iter().map(FarState::of).collect(),
            seal,
        }
    }
}

impl SessionState {
    fn of(session: SessionStatus, is_sealed: bool) -> Self {
        let around = if is_sealed { longhaul_seal::OVERHEAD as u16 } else { 0 };
        let path = |path: PathStatus| PathState {
            roce_mtu: path.roce_mtu(),
            is_up: path.is_up,
            rtt_us: path.rtt.map(|rtt| rtt.as_secs_f64() * 1e6),
            loss: path.loss,
            in_flight: path.in_flight,
            copies: path.copies,
            sent: path.sent,
            lost: path.lost,
            outages: path.outages,
            residual: path.residual,
            parity: path.parity,
            parity_sent: path.parity_sent,
            repaired: path.repaired,
            rate_bps: path.rate.map(|rate| rate.as_bps()),
            delivered_bps: path.delivered.map(|rate| rate.as_bps()),
            queue_us: path.queue_delay.map(|delay| delay.as_secs_f64() * 1e6),
            limited_by: path.limited_by.to_string(),
            mtu: path.mtu + around,
            mtu_is_settled: path.mtu_is_settled,
            split: path.split,
            black_holes: path.black_holes,
        };
        SessionState {
            far_box: format!("{:016x}", session.box_id),
            name: session.name,
            is_open: session.is_open,
            streams_out: session.streams_out,
            streams_in: session.streams_in,
            send_bytes: session.send_bytes,
            send_bytes_peak: session.send_bytes_peak,
            receive_bytes: session.receive_bytes,
            receive_bytes_peak: session.receive_bytes_peak,
            far_room_bytes: session.far_room_bytes,
            paths: session.paths.into_iter().map(path).collect(),
        }
    }
}

/// Writes text lines about the transport.
pub fn write_transport(transport: &TransportState, text: &mut String) -> Result {
    let counted = |name: &str| transport.counters.get(name).copied().unwrap_or(0);
    writeln!(
        text,
        "  transport: {} tunnelled, {} delivered, {} retransmitted{}; drops: {}",
        count(counted("tunnelled"), "frame"),
        counted("delivered"),
        counted("repeated"),
        needless(counted("tail_probes"), counted("spurious")),
        nonzero(&transport.drops),
    )?;
    if let Some(refused) = &transport.refused {
        writeln!(text, "    refused: {refused}")?;
    }
    if let Some(seal) = &transport.seal {
        write_seal(seal, text)?;
    }
    for far in &transport.far {
        let via = far.via.as_ref().map_or_else(String::new, |via| format!(" by {via}"));
        writeln!(text, "    far box for {}{via}: {}", far.prefix, far.outcome(transport.fate()))?;
    }
    if transport.sessions.is_empty() {
        writeln!(text, "    no far box found; traffic {}", transport.fate())?;
    }
    for session in &transport.sessions {
        let state = if session.is_open { "open" } else { "being opened" };
        writeln!(
            text,
            "    box {}, {state}: {} out, {} in; send buffer {}, receive buffer {}",
            session.far_box,
            count(session.streams_out as u64, "stream"),
            session.streams_in,
            bytes(session.send_bytes),
            bytes(session.receive_bytes),
        )?;
        for (number, path) in (1..).zip(&session.paths) {
            write_path(number, path, text)?;
        }
    }
    Ok(())
}

/// Retransmissions for other reasons than a loss; empty if there are none.
fn needless(tail_probes: u64, spurious: u64) -> String {
    let probes = count(tail_probes, "tail probe");
    match (tail_probes, spurious) {
        (0, 0) => String::new(),
        (_, 0) => format!(" ({probes})"),
        (0, _) => format!(" ({spurious} needlessly)"),
        _ => format!(" ({probes}, {spurious} needlessly)"),
    }
}

fn write_path(number: usize, path: &PathState, text: &mut String) -> Result {
    let link = if path.is_up { "up" } else { "out" };
    let rtt = path.rtt_us.map_or_else(|| "unknown".to_string(), microseconds);
    writeln!(
        text,
        "      path {number} {link}: RTT {rtt}, loss {}, {} in flight, {} sent, {} lost, {} \
         repaired by {} ({}), {}",
        measured_fraction(path.loss),
        count(path.in_flight, "datagram"),
        path.sent,
        path.lost,
        path.repaired,
        count(path.parity_sent, "parity"),
        path.parity,
        count(path.outages, "outage"),
    )?;
    let search = if path.mtu_is_settled { "" } else { " at least" };
    writeln!(
        text,
        "        path MTU{search} {} B; {} split, {}",
        path.mtu,
        count(path.split, "frame"),
        count(path.black_holes, "black hole"),
    )?;
    if let (Some(rate), Some(queue)) = (path.rate_bps, path.queue_us) {
        writeln!(
            text,
            "        paced to {}, {} delivered; queueing delay {}; limited by: {}",
            gigabits(rate as f64),
            gigabits(path.delivered_bps.unwrap_or(0) as f64),
            microseconds(queue),
            path.limited_by,
        )?;
    }
    Ok(())
}

fn write_seal(seal: &SealState, text: &mut String) -> Result {
    let SealState { public_key, in_the_clear, drops, .. } = seal;
    writeln!(
        text,
        "    sealed by {public_key}; RDMA in the clear: {in_the_clear}; drops: {}",
        nonzero(drops)
    )?;
    for trouble in &seal.troubles {
        writeln!(text, "      {trouble}")?;
    }
    for peer in &seal.peers {
        let keys = match (&peer.cipher, peer.key_age_s) {
            (Some(cipher), Some(age)) => format!("{cipher}, keys {age:.0} s old"),
            _ => "no keys yet".to_string(),
        };
        writeln!(
            text,
            "      {} {}: {keys}, {}",
            peer.name,
            peer.public_key,
            count(peer.handshakes, "handshake")
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_wan::Config;

    fn sealed(troubles: &[&str], in_the_clear: &str, is_shaking_hands: bool) -> TransportState {
        let peer = PeerState {
            name: "east".to_string(),
            public_key: String::new(),
            cipher: None,
            key_age_s: None,
            handshakes: 0,
            is_shaking_hands,
        };
        let seal = SealState {
            public_key: String::new(),
            peers: vec![peer],
            in_the_clear: in_the_clear.to_string(),
            troubles: troubles.iter().map(ToString::to_string).collect(),
            counters: Named::new(),
            drops: Named::new(),
        };
        let mut state = TransportState::of(&Transport::new(Config::default()).unwrap(), Some(seal));
        let (prefix, via) = ("10.2.0.0/16".to_string(), Some("10.2.0.1".to_string()));
        state.far.push(FarState { prefix, via, reached: vec![], is_silent: true });
        state
    }

    #[test]
    fn keys_that_do_not_fit_are_one_line_and_the_same_reason_in_health() {
        let state = sealed(&["peer east has another pre-shared key"], "none", false);
        assert_eq!(state.news(), ["peer east has another pre-shared key"]);
        assert_eq!(state.not_ready().as_deref(), Some("peer east has another pre-shared key"));
        let mut text = String::new();
        write_transport(&state, &mut text).unwrap();
        assert!(text.contains("      peer east has another pre-shared key\n"), "{text}");
        // A silent far box is not reported while its box is reachable and shakes hands.
        assert_eq!(sealed(&[], "none", true).news(), [""; 0]);
    }

    #[test]
    fn retransmissions_without_a_loss_are_named_apart() {
        for (tail_probes, spurious, told) in [
            (0, 0, "5 retransmitted; drops"),
            (5, 0, "5 retransmitted (5 tail probes); drops"),
            (0, 1, "5 retransmitted (1 needlessly); drops"),
            (4, 1, "5 retransmitted (4 tail probes, 1 needlessly); drops"),
        ] {
            let mut state = sealed(&[], "none", false);
            let counters = [("repeated", 5), ("tail_probes", tail_probes), ("spurious", spurious)];
            state.counters = named(counters.into_iter());
            let mut text = String::new();
            write_transport(&state, &mut text).unwrap();
            assert!(text.contains(told), "{text}");
        }
    }

    #[test]
    fn what_becomes_of_traffic_is_said_as_it_is() {
        let silent = |in_the_clear| sealed(&[], in_the_clear, false).news().join("");
        assert!(
            silent("none").contains("its traffic is dropped if it is RDMA"),
            "{}",
            silent("none")
        );
        assert!(silent("any").contains("its traffic passes through"), "{}", silent("any"));
        let mut text = String::new();
        write_transport(&sealed(&[], "none", false), &mut text).unwrap();
        assert!(
            text.contains("RDMA in the clear: none") && !text.contains("passes through"),
            "{text}"
        );
    }
}
