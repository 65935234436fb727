//! Results as reports contain them.

use super::text;
use crate::bench::reporting::Report;
use longhaul_bench::Point;
use longhaul_datapath::StageCost;
use longhaul_measure::boxes::{BoxKind, Outcome};
use longhaul_measure::{Figures as _, Machine};
use longhaul_wan::Parity;
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl Report for Outcome {
    const WHAT: &'static str = "datapath";

    fn point(&self) -> Point {
        let (cell, setup) = (self.cell(), self.setup());
        let parity = match setup.parity {
            Parity::Off => "off",
            Parity::Adaptive => "adaptive",
            Parity::Always => "always",
        };
        let point = Point::new()
            .with("box", cell.kind.name())
            .with("payload_bytes", cell.payload_bytes as u64)
            .with("qps", cell.flows)
            .with("distance_km", cell.distance.km())
            .with("over", self.over().name());
        if cell.kind != BoxKind::Paired {
            return point;
        }
        point
            .with("parity", parity)
            .with("is_encrypted", setup.is_encrypted)
            .with("loss", setup.loss)
    }

    fn details(&self) -> Value {
        let stages: Vec<_> = self.measured().stages.iter().map(stage).collect();
        json!({
            "drops": self.drops(),
            "stages": stages,
            "elapsed_s": self.measured().elapsed.as_secs_f64(),
        })
    }

    fn table(machine: &Machine, outcomes: &[Self]) -> String {
        text::render(machine, outcomes)
    }
}

fn stage(cost: &StageCost) -> Value {
    let counts: BTreeMap<_, _> = cost.seen.counts.iter().copied().collect();
    json!({
        "name": cost.name,
        "is_box": cost.is_box,
        "busy_ticks": cost.busy_ticks,
        "idle_ticks": cost.idle_ticks,
        "busy_turns": cost.busy_turns,
        "counts": counts,
    })
}
