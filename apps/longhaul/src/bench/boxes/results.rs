//! Results as reports contain them.

use super::text;
use crate::bench::reporting::Report;
use longhaul_bench::Point;
use longhaul_measure::boxes::rfc2544::{Device, Outcome};
use longhaul_measure::{Figures as _, Machine};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

impl Report for Outcome {
    const WHAT: &'static str = "box";

    fn point(&self) -> Point {
        let cell = self.cell();
        let over = match cell.device {
            Device::Box(_) => self.over().name(),
            Device::Ports { .. } => "ports",
        };
        Point::new()
            .with("box", cell.device.name())
            .with("frame_bytes", self.frame_bytes)
            .with("payload_bytes", cell.payload_bytes as u64)
            .with("qps", cell.flows)
            .with("distance_km", cell.distance.km())
            .with("over", over)
            .with("goal_loss_ratio", self.loss_ratio())
    }

    fn details(&self) -> Value {
        let seconds = |times: &Vec<Duration>| -> Vec<f64> {
            times.iter().map(Duration::as_secs_f64).collect()
        };
        let loss_rates: Vec<_> = self
            .loss_rates
            .iter()
            .map(|(load, loss)| json!({ "load_frames_per_s": load, "frame_loss_ratio": loss }))
            .collect();
        let absent: BTreeMap<_, _> =
            self.absent().into_iter().map(|(name, why)| (name, why.to_string())).collect();
        json!({
            "frame_loss_rate": loss_rates,
            "back_to_back_frames": self.bursts.as_ref().ok(),
            "system_recovery_s": self.recoveries.as_ref().ok().map(seconds),
            "reset_s": self.resets.as_ref().ok().map(seconds),
            "absent": absent,
        })
    }

    fn table(machine: &Machine, outcomes: &[Self]) -> String {
        text::render(machine, outcomes)
    }
}
