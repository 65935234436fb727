//! The connection manager announces one path MTU, and the QPs use another: the PSNs of READs depend
//! on the latter.

use crate::fleet::boxes::Boxes;
use crate::fleet::plan::Mix;
use crate::fleet::{Connect, Fleet, Setup};
use longhaul_accel::{FlowState, Mode};
use longhaul_link::LinkConfig;
use longhaul_rnic::Mtu;

const MTUS: [(Mtu, Mtu); 4] = [
    (Mtu::B4096, Mtu::B1024),
    (Mtu::B1024, Mtu::B4096),
    (Mtu::B4096, Mtu::B256),
    (Mtu::B256, Mtu::B4096),
];

fn setup(seed: u64, boxes: Boxes, mix: Mix, [told, used]: [Mtu; 2], loss: f64) -> Setup {
    let setup = Setup::new(seed, boxes);
    let fibre = LinkConfig { loss, ..LinkConfig::fibre_km(100, setup.rate) };
    Setup {
        connect: Connect::Manager,
        qps: 3,
        mix,
        mtu: used,
        mtu_told: Some(told),
        size_max: 24 << 10,
        messages: 60,
        mode: if seed.is_multiple_of(2) { Mode::Early } else { Mode::Tail },
        fibre,
        ..setup
    }
}

fn go_on(loss: f64) {
    let mut seed = 0;
    for boxes in [Boxes::One, Boxes::Both, Boxes::Paired, Boxes::Whole] {
        for (told, used) in MTUS {
            for mix in [Mix::WritesAndReads, Mix::Everything] {
                seed += 1;
                let mut fleet = Fleet::new(&setup(seed, boxes, mix, [told, used], loss));
                let outcome = fleet.run();
                assert!(
                    outcome.is_clean(),
                    "{boxes:?}, {told:?}, {used:?}, {mix:?}, {seed}: {outcome:#?}"
                );
                let accelerators = fleet.accelerators();
                let flows: Vec<_> = accelerators[0].flows().collect();
                assert_eq!(flows.len(), 3);
                for flow in flows {
                    // It was accelerated throughout, by the MTU of its packets.
                    assert_eq!((flow.state, flow.learnt.name()), (FlowState::Terminated, "cm"));
                    assert_eq!(flow.path_mtu, Some(used.bytes()));
                }
                assert_eq!(accelerators[0].counters().flows_reset, 0);
            }
        }
    }
}

#[test]
fn is_what_packets_show() {
    go_on(0.0);
}

#[test]
fn is_what_packets_show_where_some_are_lost() {
    go_on(1e-2);
}
