//! The programs of flows, and their QPs.

use crate::host::{
    self, Bandwidth, Commands, Controller, Course, Goal, Host, Initiator, Latency, Listener,
    Migrator, Program, QpPlan, Receiver, Role, Sender, Storage, Threads, Window,
};
use crate::scenario::{Events, Flow, Test, Transport, Until, perftest_cq_mod};
use longhaul_rnic::{QpKind, VerbsError};
use longhaul_units::{Duration, Instant};

/// One end of a flow.
pub(crate) struct End {
    pub host: usize,
    pub program: usize,
    pub slots: Vec<usize>,
}

/// The time during which a flow counts: without `warmup` if it ends at a time, and all of it if it
/// ends after its messages or is a migration.
pub(crate) fn window(flow: &Flow, warmup: Duration) -> Window {
    match flow.test.until() {
        _ if matches!(flow.test, Test::Migration { .. }) => Window::ALWAYS,
        Until::Elapsed(time) => {
            let starts_at = Instant::ZERO + flow.starts_at;
            Window { from: starts_at.max(Instant::ZERO + warmup), until: starts_at + time }
        }
        Until::Iterations(_) => Window::ALWAYS,
    }
}

/// Creates the requester of a flow and its QPs at station `at`.
pub(crate) fn requester(
    flow: &Flow,
    at: usize,
    host: &mut Host,
    warmup: Duration,
) -> Result<End, VerbsError> {
    let window = window(flow, warmup);
    let (program, sq_depth, rq_depth) = match flow.test {
        Test::Latency { iterations } => (latency(flow, Role::Client, iterations), 4, 4),
        Test::Storage { depth, storage, .. } => {
            let program = Initiator::new(commands(flow, depth, storage, window));
            (Program::Initiator(program), Commands::sends(depth), Commands::receives(depth))
        }
        Test::Migration { depth, timeout, migration } => {
            let course = Course { migration, size: flow.message_bytes, depth, timeout };
            (Program::Migrator(Migrator::new(course)), depth, 0)
        }
        Test::Bandwidth { tx_depth, post_list, cq_mod, until, .. } => {
            let size = flow.message_bytes;
            let cq_mod = cq_mod.unwrap_or_else(|| perftest_cq_mod(size, tx_depth, post_list));
            let plan = host::Plan {
                op: flow.op,
                size,
                tx_depth: tx_depth.into(),
                post_list: post_list.into(),
                cq_mod: cq_mod.into(),
                goal: goal(until),
                counts_from: window.from,
            };
            let program = match flow.events {
                Events::Off => Program::Bandwidth(Bandwidth::new(plan)),
                Events::All | Events::Solicited => {
                    let mut threads = Threads::new(false, window);
                    for _ in 0..flow.qps {
                        host.add_thread(&mut threads, tx_depth)?;
                    }
                    Program::Sender(Sender::new(plan, threads))
                }
            };
            (program, tx_depth, 0)
        }
    };
    let program = host.add(program);
    let plan = qp_plan(flow, sq_depth, rq_depth, window);
    end(flow, at, host, program, &plan)
}

/// Creates the responder of a flow and its QPs at station `at`. Flows whose programs wait for
/// events have one responder if their QPs share a receive queue.
pub(crate) fn responder(
    flow: &Flow,
    at: usize,
    host: &mut Host,
    warmup: Duration,
) -> Result<End, VerbsError> {
    let window = window(flow, warmup);
    let (depth, sq_depth) = match flow.test {
        Test::Latency { .. } => (4, 4),
        Test::Bandwidth { rx_depth, .. } if flow.op.takes_receive() => (rx_depth, 1),
        Test::Bandwidth { .. } | Test::Migration { .. } => (0, 1),
        Test::Storage { depth, .. } => (Commands::receives(depth), Commands::sends(depth)),
    };
    let plan = qp_plan(flow, sq_depth, depth, window);
    let program = match (flow.test, flow.events) {
        (Test::Latency { iterations }, _) => host.add(latency(flow, Role::Server, iterations)),
        (Test::Storage { depth, storage, .. }, _) => {
            let commands = commands(flow, depth, storage, window);
            host.add(Program::Controller(Controller::new(commands)))
        }
        (Test::Migration { .. }, _) | (Test::Bandwidth { .. }, Events::Off) => {
            host.add(Program::Receiver(Receiver::new(flow.message_bytes, depth)))
        }
        (Test::Bandwidth { .. }, events) => {
            listener(flow, host, depth, Threads::new(events == Events::Solicited, window))?
        }
    };
    end(flow, at, host, program, &plan)
}

/// Returns the number of the program that receives a flow's messages and waits for events.
fn listener(
    flow: &Flow,
    host: &mut Host,
    depth: u32,
    mut threads: Threads,
) -> Result<usize, VerbsError> {
    if let Some((number, listener)) = host.listener_mut() {
        let joined = listener.threads().window.joined(threads.window);
        listener.threads_mut().window = joined;
        listener.admit(flow.message_bytes);
        return Ok(number);
    }
    match host.shared_depth() {
        Some(depth) => {
            host.add_thread(&mut threads, depth)?;
        }
        None => {
            for _ in 0..flow.qps {
                host.add_thread(&mut threads, depth.max(1))?;
            }
        }
    }
    Ok(host.add(Program::Listener(Listener::new(flow.message_bytes, depth, threads))))
}

fn goal(until: Until) -> Goal {
    match until {
        Until::Iterations(count) => Goal::Messages(count),
        Until::Elapsed(time) => Goal::Time(time),
    }
}

fn commands(flow: &Flow, depth: u32, storage: Storage, window: Window) -> Commands {
    Commands {
        op: flow.op,
        size: flow.message_bytes,
        depth,
        goal: goal(flow.test.until()),
        counts_from: window.from,
        storage,
    }
}

fn latency(flow: &Flow, role: Role, iterations: u64) -> Program {
    Program::Latency(Latency::new(role, flow.op, flow.message_bytes, iterations))
}

fn qp_plan(flow: &Flow, sq_depth: u32, rq_depth: u32, window: Window) -> QpPlan {
    QpPlan {
        kind: match flow.transport {
            Transport::Rc => QpKind::Rc,
            Transport::Uc => QpKind::Uc,
        },
        dscp: flow.dscp,
        sq_depth,
        rq_depth,
        size: flow.message_bytes,
        inline_max: match flow.test {
            Test::Storage { .. } => longhaul_nvme::SQE_LEN as u32,
            _ => 0,
        },
        window,
    }
}

fn end(
    flow: &Flow,
    at: usize,
    host: &mut Host,
    program: usize,
    plan: &QpPlan,
) -> Result<End, VerbsError> {
    let threads = host.program(program).threads().map_or(1, Threads::len);
    let slots: Result<Vec<usize>, _> =
        (0..flow.qps as usize).map(|qp| host.create_qp(program, qp % threads, plan)).collect();
    Ok(End { host: at, program, slots: slots? })
}
