//! Results of a measurement, as figures by name.

use super::cell::Cell;
use super::figures::EndFigures;
use crate::{Figures, Machine};
use longhaul_datapath::WorkPart;
use std::collections::BTreeMap;

/// Cost of an end per packet with payload.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Ticks of the time-stamp counter in its busy steps: median over stretches.
    pub ticks_per_packet: f64,
    /// Payload rate with a processor to itself.
    pub goodput_bps: f64,
    /// Ticks per packet of each part, if instrumented.
    pub parts: Option<Vec<(WorkPart, f64)>>,
}

/// Results of one row of the table.
#[derive(Clone, Debug)]
pub struct Outcome {
    cell: Cell,
    /// The requester's and the responder's.
    ends: [EndFigures; 2],
    /// The same for an instrumented pass.
    instrumented: Option<[EndFigures; 2]>,
}

impl Outcome {
    /// Creates the results without an instrumented pass.
    pub(super) fn new(cell: &Cell, ends: [EndFigures; 2]) -> Self {
        Outcome { cell: cell.clone(), ends, instrumented: None }
    }

    /// Adds the figures of an instrumented pass.
    pub(super) fn with_instrumented(self, ends: [EndFigures; 2]) -> Self {
        Outcome { instrumented: Some(ends), ..self }
    }

    /// Figures of the requester and of the responder.
    pub fn ends(&self) -> &[EndFigures; 2] {
        &self.ends
    }

    /// Whether there was an instrumented pass.
    pub fn is_instrumented(&self) -> bool {
        self.instrumented.is_some()
    }

    /// Peak resident memory of the requester's process, in bytes.
    pub fn resident_peak(&self) -> u64 {
        let [start, _, most] = self.ends[0].resident_bytes;
        most.max(start)
    }

    fn cost_of(&self, end: &EndFigures, machine: &Machine) -> Cost {
        let ticks_per_packet = end.ticks_per_packet;
        let goodput_bps =
            self.cell.payload_bytes() * 8.0 * machine.ticks_per_s() / ticks_per_packet.max(1e-9);
        // Scale each part's share to the median cost.
        let each = |ticks: u64| ticks_per_packet * ticks as f64 / end.busy_ticks.max(1) as f64;
        let parts = end.parts.map(|ticks| WorkPart::ALL.into_iter().zip(ticks.map(each)).collect());
        Cost { ticks_per_packet, goodput_bps, parts }
    }

    /// Costs of the payload's sender and receiver.
    pub fn costs(&self, machine: &Machine) -> [Cost; 2] {
        let sender = self.cell.sender();
        [sender, 1 - sender].map(|end| self.cost_of(&self.ends[end], machine))
    }

    /// As [`Outcome::costs`], for the instrumented pass.
    pub fn instrumented_costs(&self, machine: &Machine) -> Option<[Cost; 2]> {
        let (instrumented, sender) = (self.instrumented.as_ref()?, self.cell.sender());
        Some([sender, 1 - sender].map(|end| self.cost_of(&instrumented[end], machine)))
    }

    /// Mean ticks per packet of the sender (0) or receiver (1), including interruptions.
    fn mean_ticks(&self, at: usize) -> f64 {
        let end = &self.ends[if at == 0 { self.cell.sender() } else { 1 - self.cell.sender() }];
        end.busy_ticks as f64 / end.packets.max(1) as f64
    }

    /// Payload of completed messages, in bits per second.
    pub fn goodput_bps(&self) -> f64 {
        let requester = &self.ends[0];
        let bits = requester.messages as f64 * f64::from(self.cell.message_bytes) * 8.0;
        bits / (requester.elapsed_ns as f64 / 1e9).max(1e-9)
    }

    /// Retransmitted packets of both ends.
    pub fn retransmits(&self) -> u64 {
        self.ends.iter().map(|end| end.retransmits).sum()
    }
}

impl Figures for Outcome {
    type Cell = Cell;

    fn cell(&self) -> &Cell {
        &self.cell
    }

    fn values(&self, machine: &Machine) -> BTreeMap<String, f64> {
        let mut values = BTreeMap::from([
            ("goodput_bps".to_owned(), self.goodput_bps()),
            ("retransmitted_packets".to_owned(), self.retransmits() as f64),
            (
                "dropped_frames".to_owned(),
                self.ends.iter().map(|end| end.drops).sum::<u64>() as f64,
            ),
            ("memory_growth_bytes".to_owned(), self.memory_growth() as f64),
        ]);
        let instrumented = self.instrumented_costs(machine);
        for (at, (who, cost)) in
            ["sender", "receiver"].into_iter().zip(self.costs(machine)).enumerate()
        {
            let mut put = |name: &str, value: f64| values.insert(format!("{who}_{name}"), value);
            put("cycles_per_packet", cost.ticks_per_packet);
            put("mean_cycles_per_packet", self.mean_ticks(at));
            put("cycles_per_byte", cost.ticks_per_packet / self.cell.payload_bytes());
            put("goodput_bps", cost.goodput_bps);
            let Some(instrumented) = instrumented.as_ref().map(|costs| &costs[at]) else {
                continue;
            };
            put("instrumented_cycles_per_packet", instrumented.ticks_per_packet);
            for (part, ticks) in instrumented.parts.iter().flatten() {
                put(&format!("{}_cycles_per_packet", part.name()), *ticks);
            }
        }
        let resident = self.ends.iter().map(|end| end.resident_bytes[1]).max().unwrap_or(0);
        values.insert("resident_bytes".to_owned(), resident as f64);
        values
    }

    /// The maximum over the ends, which share memory over rings.
    fn memory_growth(&self) -> u64 {
        self.ends.iter().map(|end| end.resident_bytes[2] - end.resident_bytes[0]).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::Line;
    use super::*;
    use longhaul_datapath::Operation;
    use longhaul_rnic::Mtu;

    fn outcome(operation: Operation) -> Outcome {
        let cell = Cell {
            line: Line::Rings { frames: 512 },
            operation,
            message_bytes: 65_536,
            mtu: Mtu::B4096,
            qps: 1,
            depth: 16,
        };
        let requester = EndFigures {
            elapsed_ns: 1_000_000_000,
            busy_ticks: 16_000_000,
            packets: 16_000,
            ticks_per_packet: 800.0,
            messages: 1000,
            ..EndFigures::default()
        };
        let responder = EndFigures { messages: 0, ticks_per_packet: 400.0, ..requester.clone() };
        Outcome { cell, ends: [requester, responder], instrumented: None }
    }

    #[test]
    fn the_sender_is_where_payload_comes_from() {
        for (operation, expected) in
            [(Operation::Write, [800.0, 400.0]), (Operation::Read, [400.0, 800.0])]
        {
            let (outcome, machine) = (outcome(operation), Machine::with_ticks_per_s(1e9));
            assert_eq!(outcome.costs(&machine).map(|cost| cost.ticks_per_packet), expected);
            let sender = &outcome.costs(&machine)[0];
            assert!((sender.goodput_bps - 4096.0 * 8e9 / expected[0]).abs() < 1.0, "{sender:?}");
            assert!((outcome.goodput_bps() - 65_536.0 * 8000.0).abs() < 1.0);
        }
    }

    #[test]
    fn memory_grows_by_what_it_does_at_either_end() {
        let mut grew = outcome(Operation::Write);
        assert_eq!(grew.memory_growth(), 0);
        grew.ends[1].resident_bytes = [1 << 20, 2 << 20, 5 << 20];
        assert_eq!(grew.memory_growth(), 4 << 20);
    }

    #[test]
    fn parts_come_from_the_instrumented_pass() {
        let mut both = outcome(Operation::Write);
        let mut instrumented = both.ends.clone();
        instrumented[0].parts = Some([1_000_000, 2_000_000, 4_000_000, 8_000_000, 1_000_000]);
        both.instrumented = Some(instrumented);
        let machine = Machine::with_ticks_per_s(1e9);
        let values = both.values(&machine);
        assert_eq!(values["sender_copy_cycles_per_packet"], 200.0);
        assert!(
            values.values().all(|value| value.is_finite())
                && !values.contains_key("receiver_copy_cycles_per_packet")
        );
    }
}
