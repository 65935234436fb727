//! Outcomes of flows.

use super::{Arrivals, FlowOutcome, Latency, Migrated, Setup};
use crate::host::{Migrator, Op, Program, Window};
use crate::network::Network;
use crate::programs::End;
use crate::scenario::{Flow, Transport, Until};
use crate::simulation::target;
use longhaul_rnic::Status;
use longhaul_units::{Duration, Instant};

/// What the requester's program knows.
struct Requested {
    /// Messages completed, and those of them that do not count.
    messages: u64,
    early: u64,
    began: Instant,
    last: Instant,
    latencies: Vec<u64>,
    failure: Option<Status>,
    out_of_order: u64,
    /// Work requests for which a send queue had no room.
    refused: u64,
}

impl Requested {
    fn of(program: &Program) -> Self {
        let ps = |latencies: &[Duration]| latencies.iter().map(|it| it.as_ps()).collect();
        match program {
            Program::Bandwidth(program) => Requested {
                messages: program.messages,
                early: program.early,
                began: program.began(),
                last: program.last,
                latencies: ps(&program.latencies),
                failure: program.failure,
                out_of_order: program.out_of_order,
                refused: 0,
            },
            Program::Sender(program) => Requested {
                messages: program.messages,
                early: program.early,
                began: program.began,
                last: program.last,
                latencies: Vec::new(),
                failure: program.failure,
                out_of_order: 0,
                refused: 0,
            },
            Program::Latency(program) => Requested {
                messages: program.latencies.len() as u64,
                early: 0,
                began: program.began,
                last: program.last,
                latencies: ps(&program.latencies),
                failure: program.failure,
                out_of_order: 0,
                refused: 0,
            },
            Program::Initiator(program) => Requested {
                messages: program.messages,
                early: program.early,
                began: program.began,
                last: program.last,
                latencies: ps(&program.latencies),
                failure: program.failure,
                out_of_order: 0,
                refused: program.refused(),
            },
            Program::Migrator(program) => Requested {
                messages: program.messages,
                early: 0,
                began: program.began,
                last: program.last,
                latencies: Vec::new(),
                failure: program.failure,
                out_of_order: 0,
                refused: program.refused(),
            },
            Program::Receiver(_) | Program::Listener(_) | Program::Controller(_) => {
                unreachable!("a responder")
            }
        }
    }
}

impl FlowOutcome {
    /// Collects the outcome of a flow that counts within `window`, and its violations.
    pub(crate) fn of(
        network: &Network,
        flow: &Flow,
        [requester, responder]: &[End; 2],
        window: Window,
        violations: &mut Vec<String>,
    ) -> Self {
        let host = network.host(requester.host);
        let requested = Requested::of(host.program(requester.program));
        let name = &flow.name;
        if requested.out_of_order > 0 {
            violations.push(format!("{name}: {} completions out of order", requested.out_of_order));
        }
        let mut failure = requested.failure;
        let mut refused = requested.refused;
        let of_responder = network.host(responder.host).program(responder.program);
        if let Program::Controller(target) = of_responder {
            // What fails when the host is done has failed because it disconnected.
            let is_over = host.program(requester.program).is_done();
            let of_target = target.failure.filter(|(at, _)| !is_over || *at <= requested.last);
            failure = failure.or(of_target.map(|(_, status)| status));
            refused += target.refused();
        }
        if refused > 0 {
            violations.push(format!("{name}: {refused} work requests found no room"));
        }
        let target = target(flow, requester, responder);
        let nic = network.host(target.host).nic();
        let misplaced: u64 = target.slots.iter().map(|&slot| nic.misplaced(slot)).sum();
        if flow.op != Op::Atomic && misplaced > 0 {
            violations.push(format!("{name}: {misplaced} packets placed where others belonged"));
        }
        let mut messages = requested.messages - requested.early;
        let mut elapsed = requested.last.since(requested.began.max(window.from));
        let arrivals = arrivals(network, flow, responder, requested.messages, violations);
        if flow.transport == Transport::Uc && flow.op.takes_receive() {
            let nic = network.host(responder.host).nic();
            let of_slots = || responder.slots.iter().map(|&slot| nic.arrivals(slot));
            messages = of_slots().map(|arrivals| arrivals.counted).sum();
            if !ends_at_a_time(flow) {
                let last = of_slots().map(|arrivals| arrivals.last).max();
                elapsed = last.unwrap_or(requested.last).since(requested.began);
            }
        }
        let bytes = messages * u64::from(flow.message_bytes);
        let seconds = elapsed.as_secs_f64();
        let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        FlowOutcome {
            name: name.clone(),
            messages,
            bytes,
            elapsed_ns: elapsed.as_ns(),
            goodput_bps: per_second(bytes as f64 * 8.0),
            messages_per_second: per_second(messages as f64),
            latency: Latency::of(requested.latencies),
            setup: host.setup_times(requester.program).map(|(times, qps)| Setup {
                mean_ns: times.sum.as_ps() as f64 / qps as f64 / 1e3,
                max_ns: times.max.as_ps() as f64 / 1e3,
            }),
            arrivals,
            migration: Migrated::of(host.program(requester.program), flow.message_bytes),
            failure: match host.connection_failure(requester.program) {
                Some(failure) => Some(failure.to_owned()),
                None => failure.map(|status| status.to_string()),
            },
        }
    }
}

impl Migrated {
    /// `None`: another program.
    fn of(program: &Program, size: u32) -> Option<Self> {
        let Program::Migrator(migrator) = program else { return None };
        let Migrator { times, began, last, .. } = migrator;
        let span = |from: Option<Instant>, until: Option<Instant>| {
            from.map(|from| until.unwrap_or(*last).since(from).as_ns())
        };
        let [disk, memory] = migrator.posted.map(|posted| posted * u64::from(size));
        Some(Migrated {
            finished: times.arrival.is_some(),
            total_ns: last.since(*began).as_ns(),
            setup_ns: span(Some(*began), times.disk),
            disk_ns: span(times.disk, times.passes),
            pre_copy_ns: span(times.passes, times.stop),
            downtime_ns: span(times.stop, times.arrival),
            passes: migrator.passes,
            disk_bytes: disk,
            memory_bytes: memory,
            left_bytes: migrator.left_bytes(),
        })
    }
}

fn ends_at_a_time(flow: &Flow) -> bool {
    matches!(flow.test.until(), Until::Elapsed(_))
}

/// What the responder of a bandwidth test knows of a flow with UC, of which `sent` messages were
/// sent.
fn arrivals(
    network: &Network,
    flow: &Flow,
    responder: &End,
    sent: u64,
    violations: &mut Vec<String>,
) -> Option<Arrivals> {
    let nic = network.host(responder.host).nic();
    let slots = || responder.slots.iter();
    let flagged: u64 = slots().map(|&slot| nic.arrivals(slot).flagged).sum();
    if flow.transport == Transport::Rc {
        if flagged > 0 {
            violations.push(format!("{}: {flagged} messages never arrived", flow.name));
        }
        return None;
    }
    let messages = match flow.op.takes_receive() {
        true => slots().map(|&slot| nic.arrivals(slot).messages).sum(),
        false => slots().map(|&slot| nic.messages(slot)).sum(),
    };
    let lost = if ends_at_a_time(flow) { None } else { sent.checked_sub(messages) };
    if lost.is_some_and(|lost| flagged > lost) {
        violations.push(format!("{}: {flagged} messages flagged, {lost:?} lost", flow.name));
    }
    Some(Arrivals {
        messages,
        incomplete: slots().map(|&slot| nic.incomplete(slot)).sum(),
        lost,
        flagged,
        duplicates: slots().map(|&slot| nic.arrivals(slot).duplicates).sum(),
    })
}
