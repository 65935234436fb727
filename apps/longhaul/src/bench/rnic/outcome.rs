//! What came of a measurement, as figures by name.

use super::figures::EndFigures;
use super::{OperationName, Over};
use crate::bench::datapath::outcome::Machine;
use crate::problem::Problem;
use crate::quantity::Size;
use longhaul_bench::{Point, Record, Source};
use longhaul_datapath::{Part, TransferConfig};
use longhaul_rnic::Mtu;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;

/// One line of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    pub over: Over,
    pub operation: OperationName,
    pub message_bytes: u32,
    pub mtu: Mtu,
    pub qps: u32,
    pub depth: u32,
}

impl Cell {
    /// What both ends are given.
    pub fn transfer(&self, is_watched: bool) -> TransferConfig {
        let Cell { operation, message_bytes, mtu, qps, depth, .. } = *self;
        TransferConfig { operation: operation.into(), message_bytes, mtu, qps, depth, is_watched }
    }

    /// Payload of a packet, on average.
    pub fn payload_bytes(&self) -> f64 {
        let len = u64::from(self.message_bytes);
        len as f64 / self.mtu.packets(len) as f64
    }

    /// Which of the two ends payload comes from.
    pub fn sender(&self) -> usize {
        usize::from(self.operation == OperationName::Read)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = Size::from_bytes(self.message_bytes.into());
        let (operation, over) = (self.operation.name(), self.over.name());
        write!(f, "{operation} {size}, {} QPs, over {over}", self.qps)
    }
}

/// What an end costs, of a packet with payload.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Packets with payload that it sent or received.
    pub packets: u64,
    /// Ticks of the time-stamp counter in its busy steps.
    pub ticks_per_packet: f64,
    /// Payload that it would send or take in with a processor to itself.
    pub goodput_bps: f64,
    /// Ticks per packet for each part, where it was watched.
    pub parts: Option<Vec<(Part, f64)>>,
}

/// What came of one line of the table.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub cell: Cell,
    /// The requester's and the responder's.
    pub ends: [EndFigures; 2],
    /// The same, of another run in which they were watched.
    pub watched: Option<[EndFigures; 2]>,
    ticks_per_s: f64,
}

impl Outcome {
    /// Without a watched run.
    pub fn new(cell: Cell, ends: [EndFigures; 2], machine: &Machine) -> Self {
        Outcome { cell, ends, watched: None, ticks_per_s: machine.ticks_per_s }
    }

    /// The part of its steps in which an end had a processor: less than 1 where others wanted it too.
    fn processor_share(&self, ends: &[EndFigures; 2], end: usize) -> f64 {
        let steps = |end: &EndFigures| (end.busy_ticks + end.idle_ticks) as f64 / self.ticks_per_s;
        let steps_s = match self.cell.over {
            // One thread for both.
            Over::Rings => ends.iter().map(steps).sum(),
            Over::Memif | Over::Xdp => steps(&ends[end]),
        };
        (ends[end].used_ns as f64 / 1e9 / f64::max(steps_s, 1e-9)).min(1.0)
    }

    fn cost_of(&self, ends: &[EndFigures; 2], end: usize) -> Cost {
        let figures = &ends[end];
        let packets = if end == self.cell.sender() { figures.tx_frames } else { figures.rx_frames };
        let share = self.processor_share(ends, end);
        let each = |ticks: u64| ticks as f64 * share / packets.max(1) as f64;
        let ticks_per_packet = each(figures.busy_ticks);
        let goodput_bps = self.cell.payload_bytes() * 8.0 * self.ticks_per_s / ticks_per_packet.max(1e-9);
        let parts = figures.parts.map(|ticks| Part::ALL.into_iter().zip(ticks.map(each)).collect());
        Cost { packets, ticks_per_packet, goodput_bps, parts }
    }

    /// Of the end that payload comes from, and of the end that it goes to.
    pub fn costs(&self) -> [Cost; 2] {
        let sender = self.cell.sender();
        [sender, 1 - sender].map(|end| self.cost_of(&self.ends, end))
    }

    /// As [`Outcome::costs`], of the watched run.
    pub fn watched_costs(&self) -> Option<[Cost; 2]> {
        let (watched, sender) = (self.watched.as_ref()?, self.cell.sender());
        Some([sender, 1 - sender].map(|end| self.cost_of(watched, end)))
    }

    /// Payload of messages that were completed, in bits per second.
    pub fn goodput_bps(&self) -> f64 {
        let requester = &self.ends[0];
        let bits = requester.messages as f64 * f64::from(self.cell.message_bytes) * 8.0;
        bits / (requester.elapsed_ns as f64 / 1e9).max(1e-9)
    }

    /// Packets sent again, by both ends.
    pub fn retransmits(&self) -> u64 {
        self.ends.iter().map(|end| end.retransmits).sum()
    }

    /// Bytes by which memory of an end grew while it was measured, at most; over rings they share it.
    pub fn memory_growth(&self) -> u64 {
        self.ends.iter().map(|end| end.resident_bytes[2] - end.resident_bytes[0]).max().unwrap_or(0)
    }

    /// What must not be.
    pub fn faults(&self, memory_growth_max: Option<Size>) -> Option<String> {
        let most = memory_growth_max.filter(|most| self.memory_growth() > most.bytes())?;
        let grew = Size::from_bytes(self.memory_growth());
        Some(format!("{}: memory grew by {grew}, by more than {most}", self.cell))
    }

    fn point(&self) -> Point {
        let cell = &self.cell;
        Point::new()
            .with("over", cell.over.name())
            .with("operation", cell.operation.name())
            .with("message_bytes", u64::from(cell.message_bytes))
            .with("mtu", cell.mtu.bytes())
            .with("qps", cell.qps)
            .with("depth", cell.depth)
    }

    /// Figures by name; names end in their units.
    pub fn values(&self) -> BTreeMap<String, f64> {
        let mut values = BTreeMap::from([
            ("goodput_bps".to_owned(), self.goodput_bps()),
            ("retransmitted_packets".to_owned(), self.retransmits() as f64),
            ("dropped_frames".to_owned(), self.ends.iter().map(|end| end.drops).sum::<u64>() as f64),
            ("memory_growth_bytes".to_owned(), self.memory_growth() as f64),
        ]);
        let watched = self.watched_costs();
        for (at, (who, cost)) in ["sender", "receiver"].into_iter().zip(self.costs()).enumerate() {
            let mut put = |name: &str, value: f64| values.insert(format!("{who}_{name}"), value);
            put("cycles_per_packet", cost.ticks_per_packet);
            put("cycles_per_byte", cost.ticks_per_packet / self.cell.payload_bytes());
            put("goodput_bps", cost.goodput_bps);
            let Some(watched) = watched.as_ref().map(|costs| &costs[at]) else { continue };
            put("watched_cycles_per_packet", watched.ticks_per_packet);
            for (part, ticks) in watched.parts.iter().flatten() {
                put(&format!("{}_cycles_per_packet", part.name()), *ticks);
            }
        }
        let resident = self.ends.iter().map(|end| end.resident_bytes[1]).max().unwrap_or(0);
        values.insert("resident_bytes".to_owned(), resident as f64);
        values
    }

    /// As a line of a file of results.
    pub fn record(&self, machine: &Machine) -> Record {
        let mut record = Record::new("rnic", Source::Measured, self.point());
        record.values.extend(self.values());
        let Machine { processor, cores, kernel, ticks_per_s, .. } = machine;
        let ghz = ticks_per_s / 1e9;
        record.note(format!("{processor}, {cores} cores, {ghz:.2} GHz of ticks, Linux {kernel}"))
    }
}

/// What `--json` prints.
pub fn json(machine: &Machine, outcomes: &[Outcome]) -> Result<String, Problem> {
    let results: Vec<_> = outcomes
        .iter()
        .map(|outcome| {
            json!({
                "point": outcome.point(),
                "values": outcome.values(),
                "requester": outcome.ends[0],
                "responder": outcome.ends[1],
            })
        })
        .collect();
    let output = json!({ "schema": "longhaul-rnic/1", "machine": machine, "results": results });
    let text = serde_json::to_string_pretty(&output);
    Ok(text.map_err(|e| Problem::plain(format!("cannot write JSON: {e}")))? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(over: Over, operation: OperationName) -> Outcome {
        let cell = Cell { over, operation, message_bytes: 65_536, mtu: Mtu::B4096, qps: 1, depth: 16 };
        let end = EndFigures {
            elapsed_ns: 1_000_000_000,
            used_ns: 1_000_000_000,
            busy_ticks: 250_000_000,
            idle_ticks: 250_000_000,
            busy_steps: 100,
            ..EndFigures::default()
        };
        let requester = EndFigures { messages: 1000, tx_frames: 16_000, rx_frames: 1000, ..end.clone() };
        let responder = EndFigures { tx_frames: 1000, rx_frames: 16_000, ..end };
        Outcome { cell, ends: [requester, responder], watched: None, ticks_per_s: 1e9 }
    }

    #[test]
    fn a_cost_is_of_a_packet_with_payload() {
        let write = outcome(Over::Rings, OperationName::Write);
        let [sender, receiver] = write.costs();
        assert_eq!((sender.packets, receiver.packets), (16_000, 16_000));
        assert!((sender.ticks_per_packet - 15_625.0).abs() < 1e-6, "{sender:?}");
        assert!((sender.goodput_bps - 4096.0 * 8.0 / 15_625e-9).abs() < 1.0, "{sender:?}");
        assert!((write.goodput_bps() - 65_536.0 * 8000.0).abs() < 1.0);
        let mut read = outcome(Over::Rings, OperationName::Read);
        read.ends.swap(0, 1);
        assert_eq!(read.costs()[0].packets, 16_000, "the responder sends");
    }

    #[test]
    fn what_others_had_of_the_processor_is_taken_off() {
        for (over, share) in [(Over::Rings, 0.5), (Over::Memif, 1.0)] {
            let mut busy = outcome(over, OperationName::Write);
            busy.ends.iter_mut().for_each(|end| end.used_ns = 500_000_000);
            let expected = 15_625.0 * share;
            assert!((busy.costs()[0].ticks_per_packet - expected).abs() < 1e-6, "{:?}", busy.costs());
        }
    }

    #[test]
    fn memory_that_grows_is_a_fault() {
        let mut grew = outcome(Over::Rings, OperationName::Write);
        assert_eq!(grew.faults(Some(Size::from_bytes(0))), None);
        grew.ends[1].resident_bytes = [1 << 20, 2 << 20, 5 << 20];
        assert_eq!(grew.faults(Some(Size::from_bytes(4 << 20))), None);
        assert!(grew.faults(Some(Size::from_bytes(3 << 20))).is_some_and(|fault| fault.contains("4 MiB")));
    }

    #[test]
    fn parts_come_from_the_watched_run() {
        let mut both = outcome(Over::Rings, OperationName::Write);
        let mut watched = both.ends.clone();
        watched[0].parts = Some([16_000, 32_000, 48_000, 64_000, 80_000]);
        both.watched = Some(watched);
        let values = both.values();
        assert_eq!(values["sender_copy_cycles_per_packet"], 3.0);
        assert!(
            values.values().all(|value| value.is_finite())
                && !values.contains_key("receiver_copy_cycles_per_packet")
        );
    }
}
