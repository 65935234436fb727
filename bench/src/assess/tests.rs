//! Tests of the assessment: figures against references, missing cells, suspect cells.

use super::*;
use crate::{Basis, Expectation, Experiment, Provenance, PublishedCell, Tolerance};

fn at(op: &str, bytes: u32) -> Point {
    Point::new().with("op", op).with("message_bytes", bytes)
}

fn experiment() -> Experiment {
    Experiment {
        published: vec![
            PublishedCell::new(at("read", 4096), "goodput_bps", 2e9),
            PublishedCell::new(at("read", 8192), "goodput_bps", 4e9),
            PublishedCell::new(at("send", 4096), "goodput_bps", 8e9).suspect("printed twice"),
        ],
        expectations: vec![Expectation::percent("goodput_bps", 1.0).by(Basis::Published)],
        ..Experiment::new("c1", "Table C-1")
    }
}

fn simulated(op: &str, bytes: u32, seed: u64, goodput: f64) -> Record {
    Record::new("c1", Source::Simulated, at(op, bytes))
        .value("goodput_bps", goodput)
        .from_run(Provenance { seed: Some(seed), ..Provenance::default() })
}

fn verdicts(assessment: &Assessment) -> Vec<(String, Verdict)> {
    let all = assessment.cells().iter().flat_map(|cell| {
        cell.judgements.values().map(|judgement| (cell.point.to_string(), judgement.verdict))
    });
    all.collect()
}

#[test]
fn a_figure_is_held_against_the_published_one() {
    let records = [simulated("read", 4096, 1, 2.01e9), simulated("read", 8192, 1, 4.1e9)];
    let assessment = Assessment::new(&experiment(), &records);
    assert_eq!(assessment.reference(), Some(Source::Published));
    let expected =
        [("message 4 KiB, op read", Verdict::Within), ("message 8 KiB, op read", Verdict::Beyond)];
    assert_eq!(verdicts(&assessment), expected.map(|(point, verdict)| (point.to_owned(), verdict)));
    let (cell, source, worst) = assessment.worst().unwrap();
    assert_eq!((cell.point.clone(), source), (at("read", 8192), Source::Simulated));
    assert!((worst - 0.025).abs() < 1e-9, "{worst}");
    assert!(!assessment.is_met());
}

#[test]
fn what_is_expected_and_not_there_is_missing() {
    let assessment = Assessment::new(&experiment(), &[simulated("read", 4096, 1, 2e9)]);
    let counts = Counts { within: 1, missing: 1, ..Counts::default() };
    assert_eq!(assessment.tally(), Tally { all: counts, published: counts, ..Tally::default() });
    // Where nobody has a figure at all, nothing was judged, which is no success either.
    let nobody = Assessment::new(&experiment(), &[]);
    assert_eq!(nobody.tally(), Tally::default());
    assert!(!nobody.is_met());
    // Whoever is asked by name has to be there.
    let mut named = experiment();
    named.expectations = vec![Expectation::percent("goodput_bps", 1.0).of(Source::Simulated)];
    assert_eq!(Assessment::new(&named, &[]).tally().all.missing, 2);
}

#[test]
fn simulations_alone_are_held_against_what_is_expected_of_them() {
    let mut alone = Experiment::new("alone", "A goal of our own");
    alone.expectations = vec![Expectation::new("goodput_bps", Tolerance::AtLeast(3e9))];
    let records = [simulated("read", 4096, 1, 2e9), simulated("read", 8192, 1, 4e9)];
    let records = records.map(|record| Record { experiment: "alone".to_owned(), ..record });
    let assessment = Assessment::new(&alone, &records);
    let counts = Counts { within: 1, beyond: 1, ..Counts::default() };
    assert_eq!(assessment.tally(), Tally { all: counts, own: counts, ..Tally::default() });
}

#[test]
fn a_suspect_figure_is_shown_and_judges_nothing() {
    let assessment = Assessment::new(&experiment(), &[simulated("send", 4096, 1, 1e9)]);
    let cell = assessment.cells().iter().find(|cell| cell.suspect).unwrap();
    let judgement = cell.judgements[&Source::Simulated];
    assert_eq!(judgement.verdict, Verdict::Unjudged);
    assert_eq!(judgement.deviation, Some(-0.875));
}

#[test]
fn fitted_cells_are_counted_apart() {
    let records = [simulated("read", 4096, 1, 2e9).fitted(), simulated("read", 8192, 1, 4e9)];
    let tally = Assessment::new(&experiment(), &records).tally();
    assert_eq!(tally.all, Counts { within: 1, fitted: 1, ..Counts::default() });
    // A cell of the document that a constant was fitted on, whoever agrees with it.
    let mut on_document = experiment();
    on_document.published[0].fitted = true;
    let records = [simulated("read", 4096, 1, 2e9), simulated("read", 8192, 1, 4e9)];
    assert_eq!(Assessment::new(&on_document, &records).tally().all, tally.all);
}

#[test]
fn what_theory_and_we_expect_is_counted_apart_from_what_documents_say() {
    let mut experiment = experiment();
    experiment.published.truncate(1);
    let theory = PublishedCell {
        source: Source::Theory,
        ..PublishedCell::new(at("send", 4096), "gain", 3.0)
    };
    experiment.published.push(theory);
    let of = |value, tolerance, basis| Expectation::new(value, tolerance).by(basis);
    experiment.expectations.extend([
        of("gain", Tolerance::AtLeast(2.0), Basis::Theory),
        of("latency_ns", Tolerance::AtMost(5.0), Basis::Own),
        // Beside a document's figure a goal of our own is no second figure.
        of("goodput_bps", Tolerance::AtLeast(1e9), Basis::Own),
    ]);
    let records = [
        simulated("read", 4096, 1, 2e9),
        simulated("send", 4096, 1, 1e9).value("gain", 2.5).value("latency_ns", 6.0),
    ];
    let tally = Assessment::new(&experiment, &records).tally();
    let [within, beyond] =
        [(1, 0), (0, 1)].map(|(within, beyond)| Counts { within, beyond, ..Counts::default() });
    assert_eq!((tally.published, tally.theory), (within, within));
    assert_eq!(tally.own, Counts { within: 1, ..beyond });
}

#[test]
fn simulations_that_others_are_held_against_have_to_meet_goals_too() {
    let mut experiment = Experiment::new("c1", "");
    experiment.expectations = vec![Expectation::new("goodput_bps", Tolerance::AtLeast(3e9))];
    let predicted = Record { source: Source::Predicted, ..simulated("read", 4096, 1, 4e9) };
    let assessment = Assessment::new(&experiment, &[predicted, simulated("read", 4096, 1, 2e9)]);
    assert_eq!(assessment.reference(), Some(Source::Simulated));
    let verdict = |source| assessment.cells()[0].judgements[&source].verdict;
    assert_eq!(verdict(Source::Predicted), Verdict::Within);
    assert_eq!(verdict(Source::Simulated), Verdict::Beyond);
}

mod a_run_that_ends_in_an_error {
    use super::*;

    fn failed(bytes: u32, seed: u64) -> Record {
        let record = simulated("read", bytes, seed, 0.0);
        Record { values: BTreeMap::new(), ..record }.failure("goodput_bps", "RetryExceeded")
    }

    #[test]
    fn is_missing_where_something_was_expected_of_it() {
        let assessment =
            Assessment::new(&experiment(), &[failed(4096, 1), simulated("read", 8192, 1, 4e9)]);
        let cell = &assessment.cells()[0];
        assert_eq!(cell.failures[&Source::Simulated], "RetryExceeded");
        assert_eq!(cell.judgements[&Source::Simulated].verdict, Verdict::Missing);
        let tally = assessment.tally();
        assert_eq!((tally.published.within, tally.published.missing, tally.failed), (1, 1, 1));
        assert!(!assessment.is_met());
    }

    #[test]
    fn is_shown_where_nothing_was() {
        let experiment = Experiment::new("c1", "");
        let assessment = Assessment::new(&experiment, &[failed(4096, 1)]);
        assert_eq!((assessment.cells().len(), assessment.is_met()), (1, true));
        assert_eq!(assessment.tally(), Tally { failed: 1, ..Tally::default() });
    }

    #[test]
    fn is_not_hidden_by_other_seeds_but_by_the_same_one_run_again() {
        let [first, second] = [failed(4096, 1), simulated("read", 4096, 2, 2e9)];
        let cells =
            Assessment::new(&experiment(), &[first.clone(), second.clone()]).cells().to_vec();
        assert_eq!(cells[0].failures[&Source::Simulated], "1 of 2 runs: RetryExceeded");
        assert!(!cells[0].figures.contains_key(&Source::Simulated));
        let again =
            Assessment::new(&experiment(), &[first, second, simulated("read", 4096, 1, 2e9)]);
        assert_eq!(again.cells()[0].judgements[&Source::Simulated].verdict, Verdict::Within);
    }

    #[test]
    fn is_owed_by_whoever_should_be_held_against_it() {
        let mut experiment = Experiment::new("c1", "");
        experiment.reference = Some(Source::Simulated);
        experiment.expectations = vec![Expectation::percent("goodput_bps", 2.0)];
        let predicted = Record { source: Source::Predicted, ..simulated("read", 4096, 1, 4e9) };
        let assessment = Assessment::new(&experiment, &[predicted, failed(4096, 1)]);
        assert_eq!(assessment.tally().own, Counts { missing: 1, ..Counts::default() });
    }
}

#[test]
fn seeds_are_averaged_and_a_seed_that_was_run_again_counts_once() {
    let records = [
        simulated("read", 4096, 1, 9e9),
        simulated("read", 4096, 2, 2.2e9),
        simulated("read", 4096, 1, 1.8e9),
    ];
    let assessment = Assessment::new(&experiment(), &records);
    let figure = &assessment.cells()[0].figures[&Source::Simulated];
    assert_eq!((figure.mean, figure.min, figure.max, figure.runs), (2e9, 1.8e9, 2.2e9, 2));
}

#[test]
fn a_floor_needs_no_reference() {
    let mut experiment = Experiment::new("c1", "");
    experiment.expectations = vec![Expectation::new("goodput_bps", Tolerance::AtLeast(40e9))];
    let of = |goodput| {
        Record::new("c1", Source::Predicted, at("read", 4096)).value("goodput_bps", goodput)
    };
    assert!(Assessment::new(&experiment, &[of(41e9)]).is_met());
    assert!(!Assessment::new(&experiment, &[of(39e9)]).is_met());
}

#[test]
fn without_published_figures_the_prediction_is_held_against_the_simulation() {
    let predicted =
        Record::new("c1", Source::Predicted, at("read", 4096)).value("goodput_bps", 3e9);
    let assessment =
        Assessment::new(&Experiment::new("c1", ""), &[predicted, simulated("read", 4096, 1, 2e9)]);
    assert_eq!(assessment.reference(), Some(Source::Simulated));
    assert_eq!(assessment.cells()[0].judgements[&Source::Predicted].deviation, Some(0.5));
}

#[test]
fn deviation_from_zero_is_none_but_for_zero_itself() {
    assert_eq!(
        [deviation(0.0, 0.0), deviation(1.0, 0.0), deviation(-1.0, -2.0)],
        [Some(0.0), None, Some(0.5)]
    );
}

#[test]
fn series_are_what_varies_beside_the_rows_and_texts_keep_their_order() {
    let mut experiment = experiment();
    experiment.labels.insert("read".to_owned(), "READ".to_owned());
    let constant: Vec<Record> = experiment
        .published_records()
        .map(|mut record| {
            record.point = record.point.with("rate_bps", 1e11).with("qps", 16);
            record
        })
        .collect();
    experiment.published.clear();
    let assessment = Assessment::new(&experiment, &constant);
    let layout = assessment.layout();
    assert_eq!(
        (layout.x.as_deref(), &layout.varying[..]),
        (Some("message_bytes"), &["op".to_owned()][..])
    );
    assert_eq!(layout.constants(), "QPs 16, rate 100 Gbit/s");
    let names: Vec<_> = assessment
        .cells()
        .iter()
        .map(|cell| layout.series_name(&layout.series(&cell.point), |_| true))
        .collect();
    assert_eq!(names, ["READ", "READ", "send"]);
}
