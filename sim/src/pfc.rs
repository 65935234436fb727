//! Flow control between stations: headroom of links, and ports that pause as a whole.

use crate::cable::WAITING_BYTES;
use crate::host::Port;
use crate::profile::NicProfile;
use crate::scenario::{Cable, Scenario, StationKind};
use longhaul_cc::dcqcn::{Dcqcn, NotificationConfig, ReactionConfig};
use longhaul_cc::wire_bytes;
use longhaul_node::{Deadline, Side};
use longhaul_switch::PfcConfig;
use longhaul_units::{BitRate, Duration, Instant};
use longhaul_wire::Pause;

/// An upper bound of RoCEv2 frames.
const LONG_FRAME_LEN: usize = 4096 + 128;
/// Maximum-length frames that can still be sent when a pause takes effect: at both ends in the
/// queue's output and beyond the bytes queued in front of the wire, the one that exceeds XOFF, and
/// one that the far end has begun.
const FRAMES: u64 = 8;

/// Maximum bytes on the wire that arrive after a pause was sent: `round_trip` at `rate`, the bytes
/// that both ends queue in front of the wire, and frames already begun.
///
/// Source: IEEE 802.1Q, annex N ("Buffer requirements for priority-based flow control").
pub fn pfc_headroom_bytes(rate: BitRate, round_trip: Duration) -> u64 {
    let ends = 2 * WAITING_BYTES + FRAMES * wire_bytes(LONG_FRAME_LEN);
    rate.bytes_in(round_trip).saturating_add(ends)
}

fn responder_delay(profile: &NicProfile) -> Duration {
    Duration::from_ns(profile.responder_ns)
}

/// Time from sending a pause to the arrival of the last bit sent before it took effect, without
/// queues at both ends. Includes a NIC's processing time.
pub(crate) fn round_trip(cable: &Cable, kinds: [&StationKind; 2]) -> Duration {
    kinds.into_iter().fold(cable.wire.delay.times(2), |sum, kind| match kind {
        StationKind::Host(profile) => sum + responder_delay(profile),
        _ => sum,
    })
}

/// Returns the headroom that a cable needs; `None` if it is unbounded.
pub(crate) fn headroom_of(scenario: &Scenario, cable: &Cable) -> Option<u64> {
    let kinds = cable.ends.map(|(station, _)| &scenario.stations[station].kind);
    Some(pfc_headroom_bytes(cable.wire.rate?, round_trip(cable, kinds)))
}

/// Describes each switch link with insufficient headroom.
pub(crate) fn short_headrooms(scenario: &Scenario) -> Vec<String> {
    let mut short = Vec::new();
    for (number, station) in scenario.stations.iter().enumerate() {
        let StationKind::Switch(config) = &station.kind else { continue };
        let Some(pfc) = &config.pfc else { continue };
        let mut cables: Vec<_> = scenario
            .cables
            .iter()
            .filter_map(|cable| {
                Some((cable.ends.into_iter().find(|end| end.0 == number)?.1, cable))
            })
            .collect();
        cables.sort_by_key(|(side, _)| *side);
        for ((_, cable), port) in cables.into_iter().zip(&pfc.ports) {
            let [one, other] = cable.ends.map(|(station, _)| &scenario.stations[station]);
            let rate = cable.wire.rate.unwrap_or(port.rate);
            let round_trip = round_trip(cable, [&one.kind, &other.kind]);
            let least = rate.bytes_in(round_trip).saturating_add(2 * wire_bytes(LONG_FRAME_LEN));
            if port.headroom_bytes < least {
                let peer = if one.name == station.name { &other.name } else { &one.name };
                short.push(format!(
                    "switch '{}' may drop lossless frames: pfc_headroom is {} bytes, and its link \
                     to '{peer}' ({rate}, {round_trip} there and back) needs at least {least}; {} \
                     always suffice",
                    station.name,
                    port.headroom_bytes,
                    pfc_headroom_bytes(rate, round_trip),
                ));
            }
        }
    }
    short
}

/// The cable at a side of a station.
pub(crate) fn cable_at(scenario: &Scenario, end: (usize, Side)) -> Option<&Cable> {
    scenario.cables.iter().find(|cable| cable.ends.contains(&end))
}

/// Returns whether the station at the other end of a side obeys every pause and every pause
/// arrives, so that no lossless frame need be dropped.
pub(crate) fn is_sound(scenario: &Scenario, end: (usize, Side)) -> bool {
    let Some(cable) = cable_at(scenario, end) else { return false };
    let wire = &cable.wire;
    let is_plain = wire.impairments.is_none() && wire.rules.is_empty() && wire.changes.is_empty();
    let is_safe = wire.loss <= 0.0 && is_plain && wire.rate.is_some();
    let other = if cable.ends[0] == end { cable.ends[1].0 } else { cable.ends[0].0 };
    let obeys = match &scenario.stations[other].kind {
        StationKind::Host(profile) => profile.pfc,
        StationKind::Box(_) => true,
        StationKind::Switch(config) => {
            config.pfc.as_ref().is_some_and(|pfc| pfc.priority == PfcConfig::ROCE_PRIORITY)
        }
    };
    is_safe && obeys
}

/// Returns the port of a host, or the error in its settings.
pub(crate) fn port(
    scenario: &Scenario,
    number: usize,
    profile: &NicProfile,
) -> Result<Port, String> {
    let cable = cable_at(scenario, (number, 0));
    let rate = cable.and_then(|cable| cable.wire.rate);
    let headroom_bytes = cable.and_then(|cable| headroom_of(scenario, cable)).unwrap_or(0);
    let room = profile.receive_buffer_bytes;
    if profile.receive_packet_ns > 0 && profile.pfc && room < headroom_bytes {
        return Err(format!(
            "a receive buffer of {room} bytes cannot be lossless: its link needs {headroom_bytes} \
             bytes of headroom; give more than that, shorten the link, or switch pfc off"
        ));
    }
    let mut dcqcn = None;
    if profile.dcqcn {
        let rate = rate.or(BitRate::from_bps(profile.rate_bps));
        match rate
            .map(|rate| Dcqcn::new(&ReactionConfig::NVIDIA, &NotificationConfig::default(), rate))
        {
            Some(Ok(made)) => dcqcn = Some(made),
            Some(Err(why)) => return Err(format!("DCQCN: {why}")),
            None => return Err("DCQCN needs a link with a rate".to_owned()),
        }
    }
    Ok(Port { rate, headroom_bytes, dcqcn })
}

/// The ports of a box, whose MACs obey pauses of any priority for the whole port, because the box
/// has no priorities.
pub(crate) struct PausedPorts {
    rates: Vec<Option<BitRate>>,
    until: Vec<Option<Instant>>,
}

impl PausedPorts {
    /// Ports with links of these rates, by side.
    pub fn new(rates: Vec<Option<BitRate>>) -> Self {
        PausedPorts { until: vec![None; rates.len()], rates }
    }

    /// Handles a frame received at `side`, which may be a pause.
    #[inline]
    pub fn hear(&mut self, now: Instant, side: Side, head: &[u8]) {
        if Pause::is_mac_control(head)
            && let (Some(pause), Some(rate)) = (Pause::parse(head), self.rates[side])
        {
            let longest = pause.quanta.into_iter().flatten().max().unwrap_or(0);
            self.until[side] = (longest > 0).then(|| now + Pause::time(longest, rate));
        }
    }

    /// Removes expired pauses.
    #[inline]
    pub fn pass(&mut self, now: Instant) {
        for until in &mut self.until {
            *until = until.filter(|until| *until > now);
        }
    }

    /// Returns whether `side` is paused.
    #[inline]
    pub fn holds(&self, side: Side) -> bool {
        self.until[side].is_some()
    }

    /// Time at which the next pause expires.
    #[inline]
    pub fn deadline(&self) -> Option<Deadline> {
        let at = self.until.iter().flatten().min()?;
        Some(Deadline { at: *at, reason: "paused by the link's other end" })
    }
}
