//! Outcomes of hosts, accelerators and switches.

use super::{AcceleratorOutcome, HostOutcome, Load, PortOutcome, SwitchOutcome};
use crate::host::{Host, Threads};
use crate::network::Network;
use crate::pfc;
use crate::scenario::{Scenario, StationKind};
use crate::station::Station;
use longhaul_accel::Accelerator;
use longhaul_readahead::ReadAhead;
use longhaul_seal::Seal;
use longhaul_switch::{DropReason, Switch};
use longhaul_units::Instant;
use longhaul_wan::{SessionStatus, Transport};

/// Outcomes by kind of station.
#[derive(Default)]
pub(crate) struct StationOutcomes {
    pub hosts: Vec<HostOutcome>,
    pub accelerators: Vec<AcceleratorOutcome>,
    pub switches: Vec<SwitchOutcome>,
}

impl StationOutcomes {
    /// Collects the outcomes of a network, and its violations.
    pub fn of(scenario: &Scenario, network: &Network, violations: &mut Vec<String>) -> Self {
        let mut all = StationOutcomes::default();
        for (number, plan) in scenario.stations.iter().enumerate() {
            let name = plan.name.clone();
            match network.station(number) {
                Station::Host(host) => {
                    let discarded = host.intake().map_or(0, |(discarded, _)| discarded);
                    if discarded > 0 && is_lossless_host(scenario, number) {
                        violations.push(lossless_drops(&name, discarded));
                    }
                    let load = load(host, network.now());
                    all.hosts.push(HostOutcome { name, counters: host_counters(host), load });
                }
                Station::Box(watched) => {
                    violations.extend(watched.violation().map(|what| format!("{name}: {what}")));
                    let node = watched.node();
                    all.accelerators.push(accelerator(name.clone(), node.near()));
                    let far = node.far().map(|far| accelerator(format!("{name}-responders"), far));
                    let between =
                        node.transport().map(|it| transport(format!("{name}-transport"), it));
                    let sealed = node.seal().map(|it| seal(format!("{name}-seal"), it));
                    let ahead =
                        node.read_ahead().map(|it| read_ahead(format!("{name}-read-ahead"), it));
                    let parts = [far, between, sealed, ahead];
                    all.accelerators.extend(parts.into_iter().flatten());
                }
                Station::Switch(switch) => {
                    let (ports, dropped) = switch_ports(scenario, number, switch);
                    if dropped > 0 {
                        violations.push(lossless_drops(&name, dropped));
                    }
                    all.switches.push(SwitchOutcome { name, ports });
                }
            }
        }
        all
    }
}

fn accelerator(name: String, node: &Accelerator) -> AcceleratorOutcome {
    let counters = node.counters();
    let drops = counters.drops.iter().map(|(reason, count)| (reason.name(), count));
    counted(name, counters.values(), drops)
}

/// A transport's counters, and the peak memory of its sessions.
fn transport(name: String, node: &Transport) -> AcceleratorOutcome {
    let counters = node.counters();
    let most = |of: fn(&SessionStatus) -> u64| node.sessions().map(|it| of(&it)).max().unwrap_or(0);
    let peaks = [
        ("send_bytes_peak", most(|session| session.send_bytes_peak)),
        ("receive_bytes_peak", most(|session| session.receive_bytes_peak)),
    ];
    let drops = counters.drops.iter().map(|(reason, count)| (reason.name(), count));
    counted(name, counters.values().chain(peaks), drops)
}

fn seal(name: String, node: &Seal) -> AcceleratorOutcome {
    let counters = node.counters();
    let drops = counters.drops.iter().map(|(reason, count)| (reason.name(), count));
    counted(name, counters.values(), drops)
}

fn read_ahead(name: String, node: &ReadAhead) -> AcceleratorOutcome {
    counted(name, node.counters().values(), std::iter::empty())
}

/// Returns the non-zero counters; dropped frames by reason.
fn counted<'a>(
    name: String,
    counters: impl Iterator<Item = (&'a str, u64)>,
    drops: impl Iterator<Item = (&'a str, u64)>,
) -> AcceleratorOutcome {
    let counters = counters.map(|(name, count)| (name.to_owned(), count));
    let drops = drops.map(|(reason, count)| (format!("dropped_{reason}"), count));
    AcceleratorOutcome {
        name,
        counters: counters.chain(drops).filter(|(_, count)| *count > 0).collect(),
    }
}

/// A host's counters that are not zero.
fn host_counters(host: &Host) -> Vec<(String, u64)> {
    let own = host.counters().iter().map(|(counter, count)| (counter.name(), count));
    let (discarded, pause) = host.intake().unwrap_or_default();
    let intake = [
        ("rx_discards_phy", discarded),
        ("tx_prio_pause", pause.pauses_sent + pause.resumes_sent),
        ("rx_buffer_bytes_max", pause.held_bytes_max),
    ];
    let all = own.chain(intake).filter(|(_, count)| *count > 0);
    all.map(|(name, count)| (name.to_owned(), count)).collect()
}

/// Work of a host's programs that wait for events, until `now` at the latest.
fn load(host: &Host, now: Instant) -> Option<Load> {
    let mut load = Load { cpu_percent: 0.0, threads: 0, events: 0, wakeups: 0 };
    for threads in host.programs().iter().filter_map(|program| program.threads()) {
        let Threads { window, load: done, .. } = threads;
        let seconds = window.until.min(now).since(window.from).as_secs_f64();
        if seconds > 0.0 {
            load.cpu_percent += 100.0 * done.busy.as_secs_f64() / seconds;
        }
        load.threads += threads.len() as u64;
        load.events += done.events;
        load.wakeups += done.wakeups;
    }
    (load.threads > 0).then_some(load)
}

/// Returns whether a host's receive buffer must not drop frames.
fn is_lossless_host(scenario: &Scenario, number: usize) -> bool {
    let StationKind::Host(profile) = &scenario.stations[number].kind else { return false };
    profile.pfc && pfc::is_sound(scenario, (number, 0))
}

fn lossless_drops(name: &str, dropped: u64) -> String {
    format!("{name}: {dropped} frames of the lossless priority dropped, with headroom enough")
}

/// A switch's ports, and the number of lossless frames that they dropped despite sufficient
/// headroom.
fn switch_ports(scenario: &Scenario, number: usize, switch: &Switch) -> (Vec<PortOutcome>, u64) {
    let mut violating = 0;
    let ports = (0..switch.config().ports).map(|side| {
        let counters = switch.counters(side);
        let cable = pfc::cable_at(scenario, (number, side));
        let pfc = switch.config().pfc.as_ref();
        let needed = cable.and_then(|cable| pfc::headroom_of(scenario, cable));
        let is_enough =
            pfc.zip(needed).is_some_and(|(pfc, needed)| pfc.ports[side].headroom_bytes >= needed);
        if is_enough && pfc::is_sound(scenario, (number, side)) {
            violating += counters.drops.get(DropReason::HeadroomFull);
        }
        let other = cable.and_then(|cable| cable.ends.iter().find(|end| **end != (number, side)));
        let leads_to = other.map_or_else(String::new, |end| scenario.stations[end.0].name.clone());
        PortOutcome::of(leads_to, &counters)
    });
    let ports = ports.collect();
    (ports, violating)
}
