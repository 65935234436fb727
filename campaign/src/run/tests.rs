//! Campaigns of shell scripts: failures, attempts, and what follows an interruption.

use super::*;
use crate::executor::{Made, OnMachine};
use longhaul_bench::ResultFile;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// A campaign of shell scripts on this machine, in a directory that is removed when dropped.
struct Place {
    directory: PathBuf,
    campaign: Campaign,
    points: Vec<Point>,
    news: Vec<String>,
}

fn executor() -> OnMachine<impl Fn(&[OsString]) -> Made> {
    OnMachine::new(|words| {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Ok(command)
    })
}

impl Place {
    fn new(name: &str, keys: &str, script: &str) -> Self {
        let directory =
            std::env::temp_dir().join(format!("longhaul-run-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).unwrap();
        let script = script.replace("DIR", &directory.display().to_string());
        let text = format!(
            "name = \"x\"\n{keys}\n[axes]\nqps = [1, 2, 3]\n[[program]]\nname = \"p\"\nclient = \
             \"\"\"sh -c '{script}' sh {{qps}}\"\"\"\npattern = \"a=(?<a>[0-9]+)\"\n"
        );
        let campaign = Campaign::parse("x.toml", &text, false).unwrap();
        let points = campaign.points(&executor()).unwrap();
        Place { directory, campaign, points, news: Vec::new() }
    }

    fn store(&self) -> Store {
        let digest = self.campaign.digest();
        Store::open("campaign", &self.directory.join("out"), &digest, Path::new("x")).unwrap()
    }

    /// Measures until `until` results are stored.
    fn measure(&mut self, until: usize) -> Tally {
        let (mut store, stop) = (self.store(), AtomicBool::new(false));
        let (mut begun, news) = (0, &mut self.news);
        let mut told = |one: News<'_>| match one {
            News::Begins { .. } => {
                begun += 1;
                stop.store(begun > until, Ordering::Relaxed);
            }
            News::Failed { reason, is_tried_again, .. } => {
                news.push(format!("{reason} {is_tried_again}"));
            }
            News::Logged(text) => news.push(text.to_owned()),
        };
        let (campaign, points) = (&self.campaign, &self.points);
        measure(campaign, points, Share::WHOLE, &mut executor(), &mut store, &stop, &mut told)
            .unwrap()
    }

    fn results(&self) -> Vec<Record> {
        ResultFile::read(&self.directory.join("out/results.jsonl")).unwrap().records
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn an_interrupted_campaign_goes_on_where_it_stopped() {
    let mut place = Place::new("resume", "repeats = 2", "echo a=$1; echo $1 >> DIR/ran");
    let first = place.measure(4);
    assert!(first.is_interrupted && first.measured == 4, "{first:?}");
    let second = place.measure(100);
    assert_eq!((second.measured, second.is_interrupted), (2, false));
    let results = place.results();
    assert_eq!(results.len(), 6);
    for record in &results {
        let qps = record.point.get("qps").and_then(longhaul_bench::Scalar::as_number);
        assert_eq!(record.values.get("a").copied(), qps, "{record:?}");
    }
    assert_eq!(place.measure(100).measured, 0);
}

#[test]
fn a_run_that_fails_is_recorded_and_the_others_go_on() {
    let keys = "repeats = 1\nretries = 2\norder = \"listed\"";
    let script = "if test $1 = 2; then echo broken; exit 4; fi; echo a=$1";
    let mut place = Place::new("fails", keys, script);
    let tally = place.measure(100);
    assert_eq!((tally.measured, tally.failed.len()), (2, 1));
    let expected = "the client, sh: exit status: 4: broken";
    assert!(tally.failed[0].ends_with(expected), "{tally:?}");
    let tries = [true, true, false].map(|again| format!("{expected} {again}"));
    assert_eq!(place.news, tries);
    let results = place.results();
    assert_eq!(results[1].failed["a"], expected);
    assert_eq!(results[1].note.as_deref(), Some("attempt 3"));
    assert_eq!(place.measure(100).measured, 0, "a failure is a result");
    assert_eq!(place.store().forget_failed().unwrap(), 1);
    assert_eq!(place.measure(100).failed.len(), 1);
}

/// An executor whose paths never come up.
struct NoPath(u32);

impl Executor for NoPath {
    fn takes(&self, _: &str) -> bool {
        false
    }

    fn parameters(&self, _: &Settings) -> Result<longhaul_bench::Point, Refusal> {
        Ok(longhaul_bench::Point::new())
    }

    fn enter(&mut self, _: &Settings) -> Result<bool, Refusal> {
        self.0 += 1;
        Err(Refusal::new("no network"))
    }

    fn leave(&mut self) -> Option<String> {
        None
    }

    fn addresses(&self, _: usize) -> Result<crate::executor::Addresses, Refusal> {
        Err(Refusal::new("no network"))
    }

    fn host(&self, _: End) -> Option<String> {
        None
    }

    fn launch(&self, _: End, _: String, _: &[String]) -> Result<crate::programs::Launch, Refusal> {
        Err(Refusal::new("no network"))
    }
}

#[test]
fn a_path_that_never_comes_up_is_tried_for_one_run_and_told_once() {
    let place = Place::new("path", "repeats = 2\nretries = 2", "true");
    let (mut store, mut executor) = (place.store(), NoPath(0));
    let mut told = Vec::new();
    let mut news = |one: News<'_>| {
        if let News::Failed { is_tried_again, .. } = one {
            told.push(is_tried_again);
        }
    };
    let (campaign, points, stop) = (&place.campaign, &place.points, AtomicBool::new(false));
    let tally =
        measure(campaign, points, Share::WHOLE, &mut executor, &mut store, &stop, &mut news);
    assert_eq!((executor.0, told.as_slice()), (3, [true, true, false].as_slice()));
    assert_eq!(tally.unwrap().failed.len(), 1);
    let results = place.results();
    assert_eq!(results.len(), 6);
    assert!(results.iter().all(|record| record.failed["a"] == "no network"), "{results:?}");
}

#[test]
fn a_second_attempt_may_succeed() {
    let script = "if mkdir DIR/$1 2>/dev/null; then exit 1; fi; echo a=$1";
    let mut place = Place::new("again", "repeats = 1", script);
    assert_eq!(place.measure(100).measured, 3);
    assert!(place.results().iter().all(|record| record.note.as_deref() == Some("attempt 2")));
}

#[test]
fn what_hangs_or_prints_nothing_names_the_cause() {
    let keys = "repeats = 1\nretries = 0\nlimit_s = 3\norder = \"listed\"";
    let script = "case $1 in 1) sleep 1000;; 2) echo b=1;; 3) echo a=3;; esac";
    let mut place = Place::new("hangs", keys, script);
    let tally = place.measure(100);
    assert_eq!((tally.measured, tally.failed.len()), (1, 2));
    assert!(tally.failed[0].ends_with("the client, sh did not end within 3 s"), "{tally:?}");
    assert!(tally.failed[1].contains("matches nothing; its output: "), "{tally:?}");
    let file = tally.failed[1].rsplit(": ").next().unwrap();
    let printed = std::fs::read_to_string(file).unwrap();
    assert!(printed.contains("b=1") && printed.contains("QPs 2"), "{printed}");
}

#[test]
fn warm_up_runs_are_not_recorded() {
    let keys = "repeats = 1\nwarm_up = 2";
    let mut place = Place::new("warm", keys, "echo a=$1; echo $1 >> DIR/ran");
    assert_eq!(place.measure(100).measured, 3);
    let ran = std::fs::read_to_string(place.directory.join("ran")).unwrap();
    assert_eq!((ran.lines().count(), place.results().len()), (5, 3));
}

#[test]
fn what_is_recorded_beside_the_values_is_in_the_record_or_named_as_absent() {
    let keys = "repeats = 1\nsample_ms = 5";
    let spin = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo a=$1";
    let mut place = Place::new("samples", keys, spin);
    assert_eq!(place.measure(100).measured, 3);
    for record in place.results() {
        // Shells of other tests are descendants of this process too.
        let shells = record.samples.iter().filter(|(name, _)| name.starts_with("sh"));
        let spent: f64 = shells.flat_map(|(_, shares)| shares).sum();
        assert!(spent > 0.0, "{:?}", record.samples);
        let is_absent = |what: &str| record.absent.keys().any(|name| name.starts_with(what));
        let has_energy = record.values.keys().any(|name| name.starts_with("energy_"));
        assert!(is_absent("energy") != has_energy, "{record:?}");
        assert!(is_absent("statistics") || !record.counters.is_empty(), "{record:?}");
        let environment = &record.provenance.as_ref().unwrap().environment;
        assert!(environment.contains_key("kernel"), "{environment:?}");
    }
    let output = std::fs::read_dir(place.directory.join("out/output")).unwrap().flatten();
    let series = output.filter(|file| file.path().extension().is_some_and(|end| end == "csv"));
    let series: Vec<String> =
        series.map(|file| std::fs::read_to_string(file.path()).unwrap()).collect();
    assert_eq!(series.len(), 3);
    assert!(series.iter().all(|text| text.contains(",sh")), "{series:?}");
}
