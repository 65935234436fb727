//! Samples of boxes and labs, and the rates between two of them.

use super::Order;
use crate::boxes::answer::Answer;
use longhaul_boxes::figures::{bytes, gigabits};
use longhaul_boxes::state::{Flow, PathState, TransportState};
use longhaul_boxes::status::BoxStatus;
use longhaul_lab::LabStatus;
use std::collections::HashMap;
use std::time::Instant;

/// The states of boxes and labs at one time.
pub struct Sample {
    pub at: Instant,
    pub boxes: Vec<Answer>,
    pub labs: Vec<LabStatus>,
}

/// Flows and paths of a pair of a box, or of a lab's site.
struct Site<'a> {
    /// Name of the box and its pair, or of the lab and its site.
    place: String,
    flows: &'a [Flow],
    transport: Option<&'a TransportState>,
}

impl Sample {
    fn sites(&self) -> Vec<Site<'_>> {
        let states = self.boxes.iter().filter_map(|answer| match answer {
            Answer::State(state) => Some(state),
            Answer::Failed { .. } => None,
        });
        let pairs = states.flat_map(|state| state.pairs.iter().map(move |pair| (state, pair)));
        let pairs = pairs.map(|(state, pair)| Site {
            place: format!("{}/{}", state.name, pair.name),
            flows: pair.accelerator.as_ref().map_or(&[], |accelerator| &accelerator.flows),
            transport: pair.transport.as_ref(),
        });
        let sites =
            self.labs.iter().flat_map(|lab| lab.accelerators.iter().map(move |at| (lab, at)));
        let sites = sites.map(|(lab, site)| Site {
            place: format!("lab {}/{}", lab.spec.name, site.site),
            flows: &site.flows,
            transport: site.transport.as_ref(),
        });
        pairs.chain(sites).collect()
    }

    fn lines(&self) -> Vec<String> {
        let of_box = |answer: &Answer| match answer {
            Answer::State(state) => box_lines(state),
            Answer::Failed { name, error } => vec![format!("{name}: {error}")],
        };
        let of_lab = |lab: &LabStatus| {
            format!("lab '{}', up {:.0} s: {}", lab.spec.name, lab.uptime_s, lab.spec.summary())
        };
        self.boxes.iter().flat_map(of_box).chain(self.labs.iter().map(of_lab)).collect()
    }
}

/// The displayed data: the later of two samples, with rates since the earlier.
#[derive(Default)]
pub struct Snapshot {
    /// Lines of each box.
    pub boxes: Vec<String>,
    pub flows: Vec<FlowRow>,
    pub paths: Vec<PathRow>,
}

/// A flow.
pub struct FlowRow {
    /// Its box's name, and its pair's.
    pub place: String,
    pub name: String,
    pub mode: String,
    pub state: String,
    pub bits_per_s: f64,
    pub packets_per_s: f64,
    pub stored_bytes: u64,
    pub ack_delay_us: Option<f64>,
    pub rtt_us: Option<f64>,
    pub resent_per_s: f64,
}

/// A path to a far box.
pub struct PathRow {
    pub place: String,
    pub name: String,
    pub is_up: bool,
    pub rtt_us: Option<f64>,
    pub loss: f64,
    /// The layout of its parity.
    pub parity: String,
    pub sent_per_s: f64,
    pub lost_per_s: f64,
    pub parity_per_s: f64,
    pub repaired_per_s: f64,
}

/// Monotonic counters of a flow or path at one time.
type Counts = [u64; 4];

impl Snapshot {
    /// Returns the snapshot of `now`, with rates since `before`. Entries that are missing in
    /// `before` have no rates.
    pub fn between(before: Option<&Sample>, now: &Sample) -> Self {
        let known: HashMap<String, Counts> = before.map(counted).unwrap_or_default();
        let seconds =
            before.map_or(1.0, |before| now.at.duration_since(before.at).as_secs_f64()).max(1e-3);
        let rates = |key: &str, counts: Counts| -> [f64; 4] {
            let then = known.get(key).copied().unwrap_or(counts);
            std::array::from_fn(|at| counts[at].saturating_sub(then[at]) as f64 / seconds)
        };
        let mut snapshot = Snapshot { boxes: now.lines(), ..Snapshot::default() };
        for site in now.sites() {
            snapshot.flows.extend(site.flows.iter().map(|flow| {
                let (key, counts) = flow_counts(&site.place, flow);
                flow_row(&site.place, flow, rates(&key, counts))
            }));
            for (key, name, path) in paths(&site) {
                let rates = rates(&key, path_counts(path));
                snapshot.paths.push(PathRow {
                    place: site.place.clone(),
                    name,
                    is_up: path.is_up,
                    rtt_us: path.rtt_us,
                    loss: path.loss,
                    parity: path.parity.clone(),
                    sent_per_s: rates[0],
                    lost_per_s: rates[1],
                    parity_per_s: rates[2],
                    repaired_per_s: rates[3],
                });
            }
        }
        snapshot
    }

    /// The flows in this order.
    pub fn sorted(&self, order: Order) -> Vec<&FlowRow> {
        let mut flows: Vec<&FlowRow> = self.flows.iter().collect();
        let name = |flow: &FlowRow| (flow.place.clone(), flow.name.clone());
        let delay = |flow: &FlowRow| flow.ack_delay_us.unwrap_or(-1.0);
        flows.sort_by_cached_key(|flow| name(flow));
        match order {
            Order::Rate => flows.sort_by(|one, other| {
                let rate = |flow: &FlowRow| (flow.bits_per_s, flow.packets_per_s);
                rate(other).partial_cmp(&rate(one)).unwrap_or(std::cmp::Ordering::Equal)
            }),
            Order::Stored => flows.sort_by_key(|flow| std::cmp::Reverse(flow.stored_bytes)),
            Order::Delay => flows.sort_by(|one, other| delay(other).total_cmp(&delay(one))),
            Order::Name => {}
        }
        flows
    }
}

/// Maximum tenants shown per pair: those that store most.
const TENANTS_SHOWN: usize = 8;

fn box_lines(state: &BoxStatus) -> Vec<String> {
    let mut lines = vec![format!("{} {}, up {:.0} s", state.command, state.name, state.uptime_s)];
    if !state.not_ready.is_empty() {
        lines.push(format!("  not ready: {}", state.not_ready.join("; ")));
    }
    for pair in &state.pairs {
        let store = pair.accelerator.as_ref().map_or_else(String::new, |accelerator| {
            let [stored, most] = [pair.stored_bytes(), accelerator.stored_bytes_max].map(bytes);
            format!(": {stored} of {most} stored")
        });
        lines.push(format!("  {}{store}", pair.name));
        lines.extend(pair.ports.iter().map(|port| {
            let (rx, tx) = (gigabits(port.rates.rx_bits_per_s), gigabits(port.rates.tx_bits_per_s));
            format!("    {} {}: in {rx}, out {tx}", port.side, port.port)
        }));
        let tenants = pair.accelerator.iter().chain(&pair.responders).flat_map(|one| &one.tenants);
        let busy = tenants.filter(|tenant| tenant.stored_bytes + tenant.refused_packets > 0);
        lines.extend(busy.take(TENANTS_SHOWN).map(|tenant| format!("    {tenant}")));
    }
    lines
}

fn flow_row(place: &str, flow: &Flow, rates: [f64; 4]) -> FlowRow {
    let vlan = if flow.vlan == 0 { String::new() } else { format!(" VLAN {}", flow.vlan) };
    FlowRow {
        place: place.to_string(),
        name: format!("{} > {} QP {:#x}{vlan}", flow.requester, flow.responder, flow.responder_qpn),
        mode: flow.mode.clone(),
        state: flow.notable_reason().unwrap_or(flow.state_in_words()).to_string(),
        bits_per_s: rates[0] * 8.0,
        packets_per_s: rates[1],
        stored_bytes: flow.stored_bytes,
        ack_delay_us: flow.ack_delay_us,
        rtt_us: flow.rtt_us,
        resent_per_s: rates[2],
    }
}

fn flow_counts(place: &str, flow: &Flow) -> (String, Counts) {
    let key = format!(
        "{place} {} {} {} {} {}",
        flow.requester, flow.responder, flow.responder_qpn, flow.vlan, flow.role
    );
    let resent = flow.retransmits_nak + flow.retransmits_rnr + flow.retransmits_timeout;
    (key, [flow.stored_payload_bytes, flow.stored_packets + flow.passed_packets, resent, 0])
}

/// The paths of a site, each with a key and a name.
fn paths<'a>(site: &Site<'a>) -> Vec<(String, String, &'a PathState)> {
    let sessions = site.transport.iter().flat_map(|transport| &transport.sessions);
    let numbered = sessions.flat_map(|session| {
        (1..).zip(&session.paths).map(move |(number, path): (u32, _)| {
            (format!("{} path {number}", session.far_box), path)
        })
    });
    numbered.map(|(name, path)| (format!("{} {name}", site.place), name, path)).collect()
}

fn path_counts(path: &PathState) -> Counts {
    [path.sent, path.lost, path.parity_sent, path.repaired]
}

/// The counters of a sample, by the keys of flows and paths.
fn counted(sample: &Sample) -> HashMap<String, Counts> {
    let mut counts = HashMap::new();
    for site in sample.sites() {
        counts.extend(site.flows.iter().map(|flow| flow_counts(&site.place, flow)));
        counts.extend(paths(&site).into_iter().map(|(key, _, path)| (key, path_counts(path))));
    }
    counts
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use longhaul_boxes::status::Rates;
    use serde_json::json;
    use std::time::Duration;

    fn flow(qpn: u32, stored_bytes: u64, ack_delay_us: f64) -> serde_json::Value {
        let mut flow = json!({
            "requester": "10.0.0.1", "requester_qpn": 5, "responder": "10.0.0.2",
            "responder_qpn": qpn, "state": "terminated", "mode": "early", "role": "near",
            "learnt": "cm", "rtt_us": 10000.0,
            "ack_delay_us": ack_delay_us, "stored_bytes": stored_bytes, "stored_frames": 1,
            "stored_packets": 10, "delivered_packets": 1, "pseudo_acks": 1,
            "stored_payload_bytes": 1000, "back_pressure": false,
            "drops": {"ack_absorbed": 7, "psn_gap": 2}
        });
        for name in [
            "vlan",
            "outstanding_reads",
            "passed_packets",
            "acks_absorbed",
            "retransmits_nak",
            "retransmits_rnr",
            "retransmits_timeout",
        ] {
            flow[name] = 0.into();
        }
        flow
    }

    /// One box with two flows and a path, and one that does not reply.
    pub fn sample() -> Sample {
        let path = json!({
            "is_up": true, "rtt_us": 10000.0, "loss": 0.01, "in_flight": 0, "copies": 1,
            "sent": 100, "lost": 0, "outages": 1, "parity": "20+2", "parity_sent": 0, "repaired": 0
        });
        let session = json!({
            "far_box": "00000000000000aa", "is_open": true, "streams_out": 1, "streams_in": 1,
            "send_bytes": 0, "send_bytes_peak": 0, "receive_bytes": 0, "receive_bytes_peak": 0,
            "far_room_bytes": 0, "paths": [path]
        });
        let frame_loop = json!({
            "turns": 1, "sleeps": 1, "malformed_frames": 0, "refused_frames": 0, "port_errors": 0,
            "lateness_us_max": 0.0
        });
        let port = |side, name, is_up, frames: u64| {
            json!({
                "side": side, "port": name, "link_is_up": is_up, "link_ups": 1,
                "rx_frames": frames, "rx_bytes": frames * 1536, "tx_frames": 2 * frames,
                "tx_bytes": frames, "rx_drops": {"buffer_full": 123}, "tx_drops": {},
                "rates": Rates::default(), "peer_violations": 0, "other": {}
            })
        };
        let ports = [port("lan", "eth1", true, 123_456_789), port("wan", "eth2", false, 1)];
        let pair = json!({
            "name": "one", "ports": ports, "frame_loop": frame_loop, "fibre": null,
            "accelerator": {
                "stored_bytes": 0, "stored_bytes_max": 0, "counters": {}, "drops": {},
                "tenants": [{
                    "prefix": "10.0.0.1", "flows": 2, "stored_bytes": 505,
                    "share_bytes": 3000, "refused_packets": 0
                }],
                "flows": [flow(0x11, 5, 100.0), flow(0x22, 500, 200.0)]
            },
            "transport": {"counters": {}, "drops": {}, "refused": null, "sessions": [session]}
        });
        let state = json!({
            "name": "west", "command": "accelerate", "pid": 1, "user": "nobody", "uptime_s": 5.0,
            "not_ready": ["pair one: wan port eth2 is down"], "pairs": [pair]
        });
        let failed =
            Answer::Failed { name: "east".to_string(), error: "does not answer".to_string() };
        let state = serde_json::from_value(state).unwrap();
        Sample { at: Instant::now(), boxes: vec![Answer::State(state), failed], labs: Vec::new() }
    }

    /// The same a second later: the first flow has stored 1 GB.
    pub fn later(first: &Sample) -> Sample {
        let mut second = sample();
        second.at = first.at + Duration::from_secs(1);
        let Answer::State(state) = &mut second.boxes[0] else { unreachable!() };
        let pair = &mut state.pairs[0];
        pair.accelerator.as_mut().unwrap().flows[0].stored_payload_bytes += 1_000_000_000;
        pair.transport.as_mut().unwrap().sessions[0].paths[0].repaired += 7;
        second
    }

    #[test]
    fn rates_are_of_what_was_counted_between() {
        let first = sample();
        let snapshot = Snapshot::between(Some(&first), &later(&first));
        let rates: Vec<f64> = snapshot.flows.iter().map(|flow| flow.bits_per_s).collect();
        assert_eq!(rates, [8e9, 0.0]);
        let path = &snapshot.paths[0];
        assert_eq!((path.repaired_per_s, path.sent_per_s), (7.0, 0.0));
    }

    #[test]
    fn tenants_have_their_shares_below_their_pair() {
        let snapshot = Snapshot::between(None, &sample());
        let line = "    tenant 10.0.0.1: 2 flows, 505 B stored of a share of 2.9 KiB";
        assert!(snapshot.boxes.iter().any(|one| one == line), "{:?}", snapshot.boxes);
    }

    #[test]
    fn what_was_not_there_or_has_begun_anew_has_no_rate() {
        let first = sample();
        assert!(
            Snapshot::between(None, &later(&first)).flows.iter().all(|flow| flow.bits_per_s == 0.0)
        );
        let mut again = sample();
        again.at = first.at;
        assert!(
            Snapshot::between(Some(&later(&first)), &again)
                .flows
                .iter()
                .all(|f| f.bits_per_s == 0.0)
        );
    }
}
