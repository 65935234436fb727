//! Points and the order of runs.

use super::*;
use crate::executor::{InLab, OnMachine};
use std::collections::BTreeSet;

const FILE: &str = r#"
name = "x"
repeats = 3
[lab]
rate = "1G"
[axes]
distance = ["0km", "10km"]
message_bytes = ["4K", "64K"]
loss = [0, 1e-3]
[[program]]
name = "write"
client = "ib_write_bw -s {message_bytes} -q {qps}"
axes = { loss = [0], qps = [1, 2] }
[[program]]
name = "tcp"
client = "iperf3"
"#;

fn points() -> (Campaign, Vec<Point>) {
    let campaign = Campaign::parse("x.toml", FILE, false).unwrap();
    let lab = InLab::new("x".parse().unwrap(), |_, _| Err("none".into()));
    let points = campaign.points(&lab).unwrap();
    (campaign, points)
}

#[test]
fn a_program_has_points_along_the_axes_that_it_uses() {
    let (_, points) = points();
    let of = |program| points.iter().filter(move |point| point.program == program);
    // Distance, size and QPs; distance and loss.
    assert_eq!((of(0).count(), of(1).count()), (8, 4));
    let places: BTreeSet<_> = points.iter().map(|point| point.place.clone()).collect();
    assert_eq!(places.len(), points.len(), "each is distinct");
    let place = Place::new().with("program", "tcp").with("rate_bps", 1e9).with("loss", 1e-3);
    assert!(places.contains(&place.with("distance_km", 10)), "{places:?}");
    let place = Place::new().with("program", "write").with("rate_bps", 1e9).with("loss", 0);
    let place = place.with("distance_km", 0).with("message_bytes", 65536).with("qps", 2);
    assert!(places.contains(&place), "{places:?}");
    // As commands have it.
    let text = |point: &Point, key: &str| point.settings.get(key).map(|value| value.text.clone());
    assert_eq!(text(&points[0], "message_bytes").as_deref(), Some("4096"));
    assert_eq!(text(&points[0], "distance").as_deref(), Some("0km"));
}

#[test]
fn runs_are_rounds_of_all_points_in_an_order_of_the_seed() {
    let (mut campaign, points) = points();
    let runs = campaign.runs(&points);
    assert_eq!(runs.len(), 3 * points.len());
    assert_eq!(runs, campaign.runs(&points));
    let mut orders = BTreeSet::new();
    for (round, runs) in runs.chunks(points.len()).enumerate() {
        assert!(runs.iter().all(|run| run.repeat == round as u32 + 1));
        let members: BTreeSet<usize> = runs.iter().map(|run| run.point).collect();
        assert_eq!(members.len(), points.len(), "each point once");
        let paths = runs.chunk_by(|a, b| points[a.point].path == points[b.point].path);
        assert_eq!(paths.count(), 4, "runs of one path follow each other");
        orders.insert(runs.iter().map(|run| run.point).collect::<Vec<_>>());
    }
    assert_eq!(orders.len(), 3, "each round has an order of its own");
    campaign.seed = 7;
    assert_ne!(runs, campaign.runs(&points));
    campaign.order = Order::Listed;
    let listed: Vec<usize> = campaign.runs(&points).iter().take(3).map(|run| run.point).collect();
    assert_eq!(listed, [0, 1, 2]);
}

#[test]
fn settings_of_a_lab_are_refused_on_this_machine() {
    let campaign = Campaign::parse("x.toml", FILE, false).unwrap();
    let refused = campaign.points(&OnMachine::new(|_| Err("none".into()))).unwrap_err();
    assert!(refused.to_string().starts_with("x.toml:5: a lab has no setting 'rate'"), "{refused}");
}

#[test]
fn too_many_runs_are_refused_before_they_are_made() {
    let values: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    let axis = |key: &str| format!("{key} = [{}]\n", values.join(","));
    let text = format!(
        "name = \"x\"\nrepeats = 1000\n[axes]\n{}{}{}[[program]]\nname = \"a\"\nclient = \"ib_x \
         {{a}} {{b}} {{c}}\"\n",
        axis("a"),
        axis("b"),
        axis("c")
    );
    let campaign = Campaign::parse("x.toml", &text, false).unwrap();
    let refused = campaign.points(&OnMachine::new(|_| Err("none".into()))).unwrap_err();
    assert!(
        refused.to_string().contains("1000000000000 runs are more than a million"),
        "{refused}"
    );
}
