//! The boxes to measure, between requesters and responders.

use super::cell::{BoxKind, Cell, Setup};
use super::error::Error;
use longhaul_accel::{Accelerator, Config, DropReason, FlowState};
use longhaul_boxes::fibre::{Ecn, Fibre};
use longhaul_boxes::quantity::Size;
use longhaul_datapath::{Bridge, Load, LoadConfig, NodeStage, RingEnd, Row, Seen, Stage};
use longhaul_link::{Impairments, Link, LinkConfig, LinkError};
use longhaul_seal::{PeerConfig, PrivateKey, Seed};
use longhaul_units::Duration as Span;
use longhaul_wan_box::{ConfigError, Identity, Sizing, WanBox};

/// Slots of each ring between two stages: more than a turn takes, and few enough to stay in the
/// cache, as a NIC's do.
const RING_SLOTS: usize = 256;
/// The longest frame: 4 KiB of payload with the headers of transport, parity and seal.
pub const FRAME_BYTES_MAX: usize = 4608;

/// Sizes of 'longhaul accelerate' without options, with a table for the cell's flows.
fn sizing(cell: &Cell) -> Sizing {
    let defaults = Sizing::default();
    Sizing { flows_max: defaults.flows_max.max(cell.flows), ..defaults }
}

/// One box, between two ports.
pub fn alone(cell: &Cell) -> Result<WanBox, ConfigError> {
    let accelerator = Config { seed: 1, ..sizing(cell).accelerator() };
    WanBox::new(longhaul_wan_box::Config::alone(accelerator))
}

/// The fibre of 'longhaul emulate', with memory for its full capacity.
pub fn emulated(cell: &Cell, setup: &Setup) -> Result<Link, LinkError> {
    let fibre = |memory| Fibre {
        delay: Span::of_fibre_m(cell.distance.metres()),
        rate: setup.rate,
        loss: 0.0,
        bursts: None,
        cut: None,
        impairments: Impairments::default(),
        rules: Vec::new(),
        changes: Vec::new(),
        queue: Fibre::QUEUE,
        ecn: Ecn::Off,
        memory,
        seed: 1,
    };
    let sized = LinkConfig {
        delay: Span::of_fibre_m(cell.distance.metres()),
        rate: Some(setup.rate),
        queue_bytes: Fibre::QUEUE.bytes(),
        ..LinkConfig::default()
    };
    let memory = sized.memory_bytes_needed().map_or(Fibre::MEMORY, Size::from_bytes);
    fibre(memory.max(Fibre::MEMORY)).link()
}

/// The path between paired boxes, unless it is a mere cable.
fn path(cell: &Cell, setup: &Setup) -> Result<Option<Link>, LinkError> {
    let delay = Span::of_fibre_m(cell.distance.metres());
    if setup.loss <= 0.0 && delay == Span::ZERO {
        return Ok(None);
    }
    let config = LinkConfig { delay, loss: setup.loss, seed: 1, ..LinkConfig::default() };
    Link::new(config).map(Some)
}

/// Box 1 or 2 of a pair.
fn whole(number: u8, cell: &Cell, setup: &Setup) -> Result<WanBox, ConfigError> {
    let key = |number: u8| PrivateKey::generate(&Seed::new([number; 32]));
    let sealing = setup.is_encrypted.then(|| {
        let peer = PeerConfig {
            name: "far".into(),
            public_key: key(3 - number).public(),
            preshared_key: None,
        };
        let config =
            longhaul_seal::Config::new(key(number), vec![peer], Seed::new([10 + number; 32]));
        longhaul_seal::Config { ciphers: longhaul_seal::Cipher::for_this_processor(), ..config }
    });
    let delay = Some(Span::of_fibre_m(cell.distance.metres()));
    let sizing = Sizing { delay, ..sizing(cell) };
    let around = if setup.is_encrypted { longhaul_seal::OVERHEAD } else { 0 };
    let transport = longhaul_wan::Config {
        parity: setup.parity,
        ..sizing.transport(Identity::of_scenario(number.into()), around)
    };
    let accelerator = Config { seed: 1, ..sizing.accelerator() };
    let config = longhaul_wan_box::Config::whole(accelerator, transport, sizing.round_trip());
    WanBox::new(config.sealed(sealing))
}

/// A load with a box between its ends, in one thread. Rings copy frames if `copies`.
pub fn row(
    cell: &Cell,
    setup: &Setup,
    load: LoadConfig,
    copies: bool,
) -> Result<Row<RingEnd>, Error> {
    let load = Load::new(load)?;
    let ring =
        |name: &str| RingEnd::pair(name, RING_SLOTS, FRAME_BYTES_MAX, copies).map_err(Error::Ring);
    let (near, a) = ring("requesters")?;
    if cell.kind == BoxKind::None {
        return Ok(Row::new(load, near, a, Vec::new()));
    }
    let (b, far) = ring("responders")?;
    let stages: Vec<Box<dyn Stage>> = match cell.kind {
        BoxKind::None | BoxKind::Forward => vec![Box::new(Bridge::new([a, b]))],
        BoxKind::Accelerator => {
            vec![Box::new(NodeStage::new("accelerator", alone(cell)?, vec![a, b], of_near))]
        }
        BoxKind::Emulator => {
            vec![Box::new(NodeStage::new("emulator", emulated(cell, setup)?, vec![a, b], of_link))]
        }
        BoxKind::Paired => {
            let (near_wan, into_path) = ring("near")?;
            let (near, far) = (whole(1, cell, setup)?, whole(2, cell, setup)?);
            let near = NodeStage::new("near", near, vec![a, near_wan], of_near);
            match path(cell, setup)? {
                None => vec![
                    Box::new(near),
                    Box::new(NodeStage::new("far", far, vec![b, into_path], of_far))
                        as Box<dyn Stage>,
                ],
                Some(link) => {
                    let (out_of_path, far_wan) = ring("far")?;
                    let link = NodeStage::new("path", link, vec![into_path, out_of_path], of_link);
                    vec![
                        Box::new(near),
                        Box::new(link.between_boxes()),
                        Box::new(NodeStage::new("far", far, vec![b, far_wan], of_far)),
                    ]
                }
            }
        }
    };
    Ok(Row::new(load, near, far, stages))
}

/// Counters of a single accelerator, or of the near box of a pair.
pub fn of_near(whole: &WanBox) -> Seen {
    let mut seen = of_accelerator(whole.near());
    if let Some(transport) = whole.transport() {
        let counters = transport.counters();
        let drops = counters.drops.iter().filter(|(_, count)| *count > 0);
        seen.drops.extend(drops.map(|(reason, count)| (reason.name(), count)));
        seen.counts.extend([
            ("tunnelled_frames", counters.tunnelled),
            ("sent_datagrams", counters.sent),
            ("repeated_frames", counters.repeated),
            ("parity_datagrams", counters.parity_sent),
        ]);
        if !transport.sessions().any(|session| session.is_open) {
            seen.ready_flows = Some(0);
        }
    }
    seen
}

/// Counters of the far box of a pair.
fn of_far(whole: &WanBox) -> Seen {
    let mut seen = whole.far().map(of_accelerator).unwrap_or_default();
    if let Some(transport) = whole.transport() {
        let counters = transport.counters();
        let drops = counters.drops.iter().filter(|(_, count)| *count > 0);
        seen.drops.extend(drops.map(|(reason, count)| (reason.name(), count)));
        seen.counts.extend([
            ("repaired_frames", counters.repaired),
            ("delivered_frames", counters.delivered),
        ]);
    }
    seen
}

fn of_accelerator(node: &Accelerator) -> Seen {
    let counters = node.counters();
    // Absorbed acknowledgements are not drops.
    let own = |reason: DropReason| reason != DropReason::AckAbsorbed;
    let drops = counters.drops.iter().filter(|(reason, count)| *count > 0 && own(*reason));
    let terminated = node.flows().filter(|flow| flow.state == FlowState::Terminated).count();
    Seen {
        drops: drops.map(|(reason, count)| (reason.name(), count)).collect(),
        ready_flows: Some(terminated as u32),
        counts: vec![
            ("stored_bytes", node.stored_bytes()),
            ("pseudo_acks", counters.pseudo_acks),
            ("absorbed_acks", counters.acks_absorbed),
            ("timeouts", counters.local_ack_timeout_err),
        ],
    }
}

/// Counters of a fibre, whose configured losses are not drops.
pub fn of_link(link: &Link) -> Seen {
    let mut seen = Seen::default();
    for side in 0..2 {
        let drops = link.counters(side).drops;
        let own = drops.iter().filter(|(reason, _)| *reason != longhaul_link::DropReason::Loss);
        seen.drops.extend(
            own.filter(|(_, count)| *count > 0).map(|(reason, count)| (reason.name(), count)),
        );
        seen.counts.push(("lost_frames", drops.get(longhaul_link::DropReason::Loss)));
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_boxes::quantity::Distance;
    use longhaul_datapath::Plan;
    use longhaul_units::BitRate;
    use longhaul_wan::Parity;
    use std::time::Duration;

    fn brief() -> Plan {
        Plan {
            warm_up: Duration::from_millis(20),
            lasts: Duration::from_secs(20),
            packets_max: Some(20_000),
            ack_delay: Span::ZERO,
        }
    }

    fn setup() -> Setup {
        let rate = BitRate::from_gbps(800).unwrap();
        Setup { rate, parity: Parity::Off, loss: 0.0, is_encrypted: false }
    }

    #[track_caller]
    fn measured(kind: BoxKind, setup: &Setup, distance: Distance) -> longhaul_datapath::Measured {
        let cell = Cell { kind, payload_bytes: 1024, flows: 20, distance };
        let load = LoadConfig { flows: cell.flows, ..LoadConfig::new(cell.payload_bytes) };
        let mut row = row(&cell, setup, load, false).unwrap();
        row.pair().unwrap_or_else(|e| panic!("{cell}: {e}"));
        let measured = row.measure(&brief(), |_| true).unwrap_or_else(|e| panic!("{cell}: {e}"));
        assert!(measured.counters.arrived >= 20_000, "{cell}: {measured:?}");
        let counters = measured.counters;
        assert_eq!(
            (measured.lost, counters.behind_gaps, counters.corrupt),
            (0, 0, 0),
            "{cell}: {measured:?}"
        );
        assert_eq!((counters.refusals, counters.foreign), (0, 0), "{cell}: {measured:?}");
        assert_eq!(measured.box_ticks_per_packet().is_none(), kind == BoxKind::None);
        measured
    }

    #[test]
    fn every_box_passes_on_what_it_is_given() {
        for kind in BoxKind::ALL {
            measured(kind, &setup(), Distance::from_km(0));
        }
    }

    #[test]
    fn paired_boxes_send_parity_and_encrypt_over_a_path_that_loses() {
        let lossy = Setup { parity: Parity::Always, loss: 1e-2, is_encrypted: true, ..setup() };
        let measured = measured(BoxKind::Paired, &lossy, Distance::from_km(0));
        let near = &measured.stages[0].seen;
        let parity = near.counts.iter().find(|(name, _)| *name == "parity_datagrams");
        assert!(parity.is_some_and(|(_, count)| *count > 0), "{near:?}");
        assert_eq!(
            measured.stages.iter().map(|stage| stage.is_box).collect::<Vec<_>>(),
            [true, false, true]
        );
    }

    #[test]
    fn a_fibre_of_any_length_has_the_memory_that_it_takes() {
        let cell = Cell {
            kind: BoxKind::Emulator,
            payload_bytes: 64,
            flows: 1,
            distance: Distance::from_km(10_000),
        };
        assert!(emulated(&cell, &setup()).is_ok());
    }
}
