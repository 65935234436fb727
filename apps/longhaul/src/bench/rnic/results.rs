//! Results as reports contain them.

use super::text;
use crate::bench::reporting::Report;
use longhaul_bench::Point;
use longhaul_measure::rnic::Outcome;
use longhaul_measure::{Figures as _, Machine};
use serde_json::{Value, json};

impl Report for Outcome {
    const WHAT: &'static str = "rnic";

    fn point(&self) -> Point {
        let cell = self.cell();
        Point::new()
            .with("over", cell.line.name())
            .with("operation", cell.operation.name())
            .with("message_bytes", u64::from(cell.message_bytes))
            .with("mtu", cell.mtu.bytes())
            .with("qps", cell.qps)
            .with("depth", cell.depth)
    }

    fn details(&self) -> Value {
        let [requester, responder] = self.ends();
        json!({ "requester": requester, "responder": responder })
    }

    fn table(machine: &Machine, outcomes: &[Self]) -> String {
        text::render(machine, outcomes)
    }
}
