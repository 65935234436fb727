//! Operations on running boxes: reconfiguration, draining, and replacement of a drained box.

use crate::host::{LOCAL, REMOTE};
use crate::row::{MTU, Op, Row, SLOT, Setup};
use crate::script::{config, run, run_with};
use longhaul_accel::{Accelerator, Config, ConfigError, FlowState, Mode, Policy, Role};
use longhaul_rnic::Status;
use longhaul_units::{BitRate, Duration};
use proptest::prelude::*;

mod draining {
    use super::*;

    const STORED: &str = "connect psn=100
         lan: write_only 100 A
         > wan write_only 100 A
         > lan ack 100 msn=1";

    #[test]
    fn nothing_further_is_acknowledged_and_the_flow_passes_once_nothing_is_owed() {
        let mut script = run(STORED);
        script.accel.set_draining(script.now, true);
        assert!(script.accel.is_draining());
        script.go_on("lan: write_only 101 A\n > wan write_only 101 A");
        assert_eq!(
            (script.status().state, script.status().stored_frames),
            (FlowState::Terminated, 2)
        );
        script.go_on("wan: ack 100 msn=1");
        assert_eq!((script.status().state, script.status().stored_frames), (FlowState::Passing, 0));
        assert_eq!(script.accel.stored_bytes(), 0);
        script.go_on(
            "wan: ack 101 msn=2
             > lan ack 101 msn=2
             lan: write_only 102 A
             > wan write_only 102 A
             wan: nak 102 sequence msn=2
             > lan nak 102 sequence msn=2
             lan: write_only 102 A
             > wan write_only 102 A
             after 2000ms",
        );
        assert_eq!(script.accel.counters().stored_lost, 0);
    }

    #[test]
    fn what_was_acknowledged_is_repeated_until_it_is_delivered() {
        let mut script = run(STORED);
        script.accel.set_draining(script.now, true);
        script.go_on(
            "wan: nak 100 sequence msn=0
             > wan write_only 100 A
             lan: write_only 101 A
             > wan write_only 101 A
             wan: ack 101 msn=2
             > lan ack 101 msn=2",
        );
        assert_eq!(script.status().state, FlowState::Passing);
    }

    #[test]
    fn a_nak_from_before_that_comes_late_is_kept_from_the_requester() {
        let mut script = run(STORED);
        script.accel.set_draining(script.now, true);
        script.go_on("wan: ack 100 msn=1\n wan: nak 100 sequence msn=0");
        assert_eq!(script.status().state, FlowState::Passing);
        script.go_on("wan: nak 101 sequence msn=1\n > lan nak 101 sequence msn=1");
    }

    #[test]
    fn a_requester_gets_a_sign_of_life_while_delivery_takes_long() {
        let mut script = run(STORED);
        script.accel.set_draining(script.now, true);
        script.go_on("lan: write_only 101 A\n > wan write_only 101 A");
        script.go_on("after 240ms\n > wan write_only 100 A");
        script.go_on("after 20ms\n > lan ack 101 msn=2");
        assert_eq!(script.status().state, FlowState::Terminated);
        script.go_on("wan: ack 101 msn=2");
        assert_eq!(script.status().state, FlowState::Passing);
    }

    #[test]
    fn flows_that_are_not_known_pass() {
        let mut script = run("");
        script.accel.set_draining(script.now, true);
        script.go_on(
            "lan: req psn=100
             > wan req
             wan: rep psn=100
             > lan rep
             lan: rtu
             > wan rtu
             lan: write_only 100 A
             > wan write_only 100 A
             wan: ack 100 msn=1
             > lan ack 100 msn=1",
        );
        assert_eq!(script.accel.flows().count(), 0);
        assert_eq!(script.accel.counters().passed_draining, 1);
        assert_eq!(script.accel.counters().flow_table_full, 0);
    }

    #[test]
    fn one_that_is_being_learnt_passes_too() {
        let mut script = run("lan: write_only 100 A\n > wan write_only 100 A");
        assert!(script.accel.stored_bytes() > 0);
        script.accel.set_draining(script.now, true);
        assert_eq!((script.accel.stored_bytes(), script.status().state), (0, FlowState::Passing));
        script.go_on(
            "wan: ack 100 msn=1\n > lan ack 100 msn=1
             lan: write_only 101 A\n > wan write_only 101 A\n \
             wan: ack 101 msn=2\n > lan ack 101 msn=2",
        );
        assert_eq!(script.accel.stored_bytes(), 0);
    }

    #[test]
    fn undone_flows_are_learnt_from_their_traffic_again() {
        let mut script = run(STORED);
        script.accel.set_draining(script.now, true);
        script.go_on("wan: ack 100 msn=1");
        script.accel.set_draining(script.now, false);
        script.go_on(
            "lan: write_only 101 A
             > wan write_only 101 A
             wan: ack 101 msn=2
             > lan ack 101 msn=2
             lan: write_only 102 A
             > wan write_only 102 A
             wan: ack 102 msn=3
             > lan ack 102 msn=3
             lan: write_only 103 A
             > wan write_only 103 A
             > lan ack 103 msn=4",
        );
        assert_eq!(script.status().state, FlowState::Terminated);
    }

    #[test]
    fn undone_before_all_is_delivered_it_goes_on_as_before() {
        let mut script = run(STORED);
        script.accel.set_draining(script.now, true);
        script.go_on("lan: write_only 101 A\n > wan write_only 101 A");
        script.accel.set_draining(script.now, false);
        script.go_on("wan: ack 100 msn=1\n > lan ack 101 msn=2");
        assert_eq!(script.status().state, FlowState::Terminated);
    }
}

mod another_configuration {
    use super::*;

    #[test]
    fn that_changes_what_cannot_change_is_refused_and_changes_nothing() {
        let mut accel = Accelerator::new(config()).unwrap();
        for (field, to) in [
            ("flows_max", Config { flows_max: 1, ..config() }),
            ("connections_max", Config { connections_max: 1, ..config() }),
            ("passthrough_bytes_max", Config { passthrough_bytes_max: 1 << 20, ..config() }),
            ("role", Config { role: Role::Far, ..config() }),
            ("seed", Config { seed: 9, ..config() }),
        ] {
            let to = Config { policy: Policy::all(Mode::Off), ..to };
            assert_eq!(accel.reconfigure(to), Err(ConfigError::Fixed { field }));
        }
        let refused =
            accel.reconfigure(Config { ack_every: 0, policy: Policy::all(Mode::Off), ..config() });
        assert!(matches!(refused, Err(ConfigError::Range { field: "ack_every", .. })));
        assert_eq!(*accel.config(), config());
    }

    #[test]
    fn leaves_known_flows_their_mode_and_holds_for_others() {
        let mut script = run_with(
            config(),
            "connect psn=100\n lan: write_first 100 A\n > wan write_first 100 A\n \
             > lan ack 100 msn=0",
        );
        let to = Config { policy: Policy::all(Mode::Tail), ..config() };
        script.accel.reconfigure(to).unwrap();
        script.go_on("lan: write_last 101 A\n > wan write_last 101 A\n > lan ack 101 msn=1");
        assert_eq!(script.status().mode, Mode::Early);
        script.go_on("connect psn=500\n lan: write_only 500 A\n > wan write_only 500 A");
        assert_eq!(script.status().mode, Mode::Tail);
    }

    #[test]
    fn with_less_memory_takes_nothing_in_until_there_is_room() {
        let mut script = run("connect psn=100");
        for psn in 100..164 {
            let ack = format!("> lan ack {psn} msn={}", psn - 99);
            script.go_on(&format!(
                "lan: write_only {psn} A len=1024\n > wan write_only {psn} A len=1024\n {ack}"
            ));
        }
        let least = 64 << 10;
        assert!(script.accel.stored_bytes() > least);
        let to = Config { flow_bytes_max: least, total_bytes_max: least, ..config() };
        script.accel.reconfigure(to).unwrap();
        script.go_on("lan: write_only 164 A len=1024");
        script.go_on("wan: ack 163 msn=64\n > lan nak 164 sequence msn=64");
        script.go_on(
            "lan: write_only 164 A len=1024\n > wan write_only 164 A len=1024\n \
                    > lan ack 164 msn=65",
        );
        assert_eq!(script.accel.counters().stored_lost, 0);
    }
}

/// An operation on a box.
#[derive(Clone, Copy, Debug)]
enum Act {
    Drain(bool),
    Window(u64),
    Memory(u64),
    Rate(Option<u64>),
    Policy(Mode),
    GiveUp(u64),
    /// Replaces the box by a new one, if it has drained.
    Exchange,
}

fn act() -> impl Strategy<Value = Act> {
    let mode = proptest::sample::select(Mode::ALL.to_vec());
    prop_oneof![
        4 => any::<bool>().prop_map(Act::Drain),
        1 => (4u64 << 10..1 << 20).prop_map(Act::Window),
        1 => (64u64 << 10..1 << 20).prop_map(Act::Memory),
        1 => proptest::option::of(prop_oneof![
            1_000_000u64..20_000_000,
            1_000_000_000u64..20_000_000_000,
        ])
        .prop_map(Act::Rate),
        2 => mode.prop_map(Act::Policy),
        1 => (10_000u64..60_000).prop_map(Act::GiveUp),
        3 => Just(Act::Exchange),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1usize..=4000).prop_map(Op::Write),
        2 => (1usize..=4000).prop_map(Op::Send),
        1 => (1usize..=2500).prop_map(Op::Read),
    ]
}

/// Returns `false` for a replacement before the box has drained.
fn perform(row: &mut Row, role: Role, act: &Act) -> bool {
    let now = row.now;
    let node = &mut row.node(role).node;
    let config = node.config().clone();
    let to = match *act {
        Act::Drain(draining) => {
            node.set_draining(now, draining);
            return true;
        }
        Act::Exchange => {
            let is_due = node.is_draining() && node.stored_bytes() == 0;
            if is_due {
                *node = Accelerator::new(config).unwrap();
            }
            return is_due;
        }
        Act::Window(bytes) => Config { ack_window_bytes: bytes, ..config },
        Act::Memory(bytes) => Config { flow_bytes_max: bytes, total_bytes_max: bytes, ..config },
        Act::Rate(bps) => Config { wan_pacing: bps.and_then(BitRate::from_bps).into(), ..config },
        Act::Policy(mode) => Config { policy: Policy::all(mode), ..config },
        Act::GiveUp(ms) => Config { give_up_after: Duration::from_ms(ms), ..config },
    };
    node.reconfigure(to).unwrap();
    true
}

/// Posts messages and performs the operations at their times. Every message must be completed and
/// delivered, once and in order.
fn operate(setup: &Setup, ops: &[Op], acts: &[(u64, Role, Act)]) -> usize {
    let mut row = Row::new(setup);
    let mut exchanges = 0;
    let mut completed = 0;
    let mut posted = 0;
    let mut acts = acts.iter();
    let mut next = acts.next();
    let mut at = row.now + next.map_or(Duration::ZERO, |(us, ..)| Duration::from_us(*us));
    let end = row.now + Duration::from_ms(100_000);
    loop {
        // A few messages each time, so that one begins under each condition.
        if posted < ops.len() && (next.is_none() || row.now >= at || posted == 0) {
            let upto = if next.is_none() { ops.len() } else { (posted + 6).min(ops.len()) };
            (posted..upto).for_each(|slot| row.post(slot, ops[slot], true));
            posted = upto;
        }
        while let Some((_, role, act)) = next.filter(|_| row.now >= at) {
            exchanges += usize::from(perform(&mut row, *role, act) && matches!(act, Act::Exchange));
            next = acts.next();
            at = row.now + next.map_or(Duration::ZERO, |(us, ..)| Duration::from_us((*us).max(1)));
        }
        for completion in row.completions(LOCAL) {
            assert_eq!(completion.status, Status::Success, "message {}", completion.wr_id);
            assert_eq!(completion.wr_id, completed as u64, "each once, in order");
            completed += 1;
        }
        if completed == ops.len() && next.is_none() && !row.is_owed_anything() {
            break;
        }
        let limit = if next.is_some() { at } else { end };
        let moved = row.step(limit);
        assert!(moved || next.is_some(), "{completed} of {} are completed", ops.len());
    }
    let lost = [Role::Near, Role::Far].map(|role| row.node(role).node.counters().stored_lost);
    assert_eq!(lost, [0, 0]);
    let writes = ops.iter().enumerate().filter(|(_, op)| !op.is_read());
    let chunks = writes.flat_map(|(slot, op)| {
        (0..op.len()).step_by(MTU).map(move |at| (slot * SLOT + at, MTU.min(op.len() - at)))
    });
    let chunks: Vec<(usize, usize)> = chunks.collect();
    assert_eq!(row.host(REMOTE).memory().writes, chunks, "each packet once, in order");
    for (slot, op) in ops.iter().enumerate() {
        let [local, remote] = [LOCAL, REMOTE].map(|host| row.bytes(host, slot, op.len()));
        assert!(local == remote, "message {slot}");
    }
    exchanges
}

fn setup(mode: Mode, slots: usize) -> Setup {
    Setup { slots, give_up_after: Duration::from_ms(20_000), ..Setup::new(mode) }
}

#[test]
fn a_box_is_exchanged_under_way_and_no_connection_notices() {
    let ops: Vec<Op> =
        [Op::Write(4000), Op::Send(1500), Op::Read(2500)].into_iter().cycle().take(60).collect();
    for mode in Mode::ALL {
        for role in [Role::Near, Role::Far] {
            // Two round trips suffice to deliver the acknowledged packets.
            let acts = [(2000, role, Act::Drain(true)), (20_000, role, Act::Exchange)];
            assert_eq!(operate(&setup(mode, ops.len()), &ops, &acts), 1, "{mode}, {}", role.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 192,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_promise_is_broken_whatever_is_changed_and_when(
        mode in proptest::sample::select(Mode::ALL.to_vec()),
        cm in any::<bool>(),
        loss in proptest::sample::select(vec![0.0, 0.01]),
        seed in 1u64..1000,
        ops in proptest::collection::vec(op(), 10..50),
        acts in proptest::collection::vec(
            (
                prop_oneof![3 => 0u64..25_000, 1 => 100_000u64..2_000_000],
                proptest::sample::select(vec![Role::Near, Role::Far]),
                act(),
            ),
            1..14,
        ),
    ) {
        let setup = Setup { cm, seed, loss: [loss, 0.0], ..setup(mode, ops.len()) };
        operate(&setup, &ops, &acts);
    }
}
