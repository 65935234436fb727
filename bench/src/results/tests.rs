//! Tests of result files: the schema of a line, refusals, damaged files.

use super::*;
use crate::{Point, Source};

fn record(bytes: u32) -> Record {
    Record::new("c1", Source::Simulated, Point::new().with("message_bytes", bytes))
        .value("goodput_bps", 0.1 + 0.2)
}

fn line(record: &Record) -> String {
    serde_json::to_string(&RecordLine { schema: SCHEMA, record }).unwrap()
}

fn read(text: &str) -> Result<ResultFile, String> {
    ResultFile::read_from(text.as_bytes(), Path::new("x.jsonl")).map_err(|e| e.to_string())
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Scratch(std::env::temp_dir().join(format!("longhaul-bench-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

mod schema {
    use super::*;

    #[test]
    fn a_line_looks_as_documented() {
        let expected = concat!(
            r#"{"schema":1,"experiment":"c1","source":"simulated","#,
            r#""point":{"message_bytes":4096},"values":{"goodput_bps":0.30000000000000004}}"#
        );
        assert_eq!(line(&record(4096)), expected);
        let full = concat!(
            r#"{"schema":1,"experiment":"c1","source":"measured","#,
            r#""point":{"op":"read","inline":true},"values":{"goodput_bps":1},"#,
            r#""provenance":{"longhaul":"0.1.0","seed":1,"command":"longhaul sim x","#,
            r#""started_at":"2026-01-01T00:00:00Z","wall_s":1.5,"host":"h","threads":2},"#,
            r#""note":"n","fitted":true,"more":0}"#
        );
        let file = read(full).unwrap();
        assert_eq!(file.records[0].provenance.as_ref().unwrap().seed, Some(1));
        assert!(file.records[0].fitted && file.damage.is_none());
    }

    #[test]
    fn another_version_is_refused_with_both_numbers() {
        let newer = line(&record(1)).replace("\"schema\":1", "\"schema\":2");
        let error = read(&format!("{}\n{newer}\n", line(&record(1)))).unwrap_err();
        assert_eq!(error, "x.jsonl line 2: schema 2; this program reads schema 1");
    }

    #[test]
    fn what_is_no_result_is_named_with_its_line_and_reason() {
        for (text, why) in [
            (r#"{"a":1}"#, "x.jsonl line 1: not a result: it has no \"schema\""),
            (r#"{"schema":1}"#, "x.jsonl line 1: not a result: missing field `experiment`"),
            (
                concat!(
                    r#"{"schema":1,"experiment":"../../etc/x","source":"simulated","#,
                    r#""point":{},"values":{}}"#
                ),
                "x.jsonl line 1: \"../../etc/x\" is no name of an experiment: letters, digits, \
                 '.', '_' and '-'",
            ),
            (
                r#"{"schema":1,"experiment":"x","source":"guessed","point":{},"values":{}}"#,
                "x.jsonl line 1: not a result: unknown variant `guessed`, expected one of \
                 `published`, `theory`, `predicted`, `simulated`, `measured`",
            ),
            (
                concat!(
                    r#"{"schema":1,"experiment":"x","source":"simulated","#,
                    r#""point":{},"values":{"a_bps":null}}"#
                ),
                "x.jsonl line 1: not a result: invalid type: null, expected f64",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), why);
        }
    }
}

mod damage {
    use super::*;

    #[test]
    fn a_last_line_that_was_cut_is_left_out_and_told() {
        let whole = line(&record(1));
        let last = line(&record(2));
        for cut in 1..last.len() {
            let file = read(&format!("{whole}\n{}", &last[..cut])).unwrap();
            assert_eq!(
                (file.records.len(), file.damage.as_ref().unwrap().line),
                (1, 2),
                "cut at {cut}"
            );
        }
        assert_eq!(read(&format!("{whole}\n{last}")).unwrap().records.len(), 2);
    }

    #[test]
    fn a_damaged_line_before_the_last_is_named_by_number() {
        let whole = line(&record(1));
        let error = read(&format!("{whole}\n{}\n{whole}\n", &whole[..30])).unwrap_err();
        assert!(error.starts_with("x.jsonl line 2: not a whole JSON object"), "{error}");
    }

    #[test]
    fn other_files_are_refused() {
        let binary: Vec<u8> = (0..=255).cycle().take(5000).collect();
        assert!(ResultFile::read_from(&binary[..], Path::new("x")).is_err());
        let error =
            ResultFile::read_from(io::repeat(b'x'), Path::new("x")).unwrap_err().to_string();
        assert_eq!(error, "x line 1: longer than 16 MiB: no file of results");
        assert!(read("").unwrap().records.is_empty());
    }
}

mod resume {
    use super::*;

    #[test]
    fn nothing_whole_is_lost_and_nothing_cut_is_kept() {
        let scratch = Scratch::new("resume");
        let (whole, last) = (line(&record(1)), line(&record(2)));
        for cut in 0..=last.len() {
            std::fs::write(&scratch.0, format!("{whole}\n{}", &last[..cut])).unwrap();
            let (mut writer, there) = ResultWriter::resume(&scratch.0).unwrap();
            writer.record(&record(3)).unwrap();
            let bytes: Vec<_> = ResultFile::read(&scratch.0)
                .unwrap()
                .records
                .iter()
                .map(|r| r.point.get("message_bytes").unwrap().as_number().unwrap())
                .collect();
            let expected = if cut == last.len() { vec![1.0, 2.0, 3.0] } else { vec![1.0, 3.0] };
            assert_eq!(bytes, expected, "cut at {cut}");
            assert_eq!(there.records.len(), expected.len() - 1);
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_begun() {
        let scratch = Scratch::new("begin");
        let (mut writer, there) = ResultWriter::resume(&scratch.0).unwrap();
        assert!(there.records.is_empty());
        writer.record(&record(1)).unwrap();
        assert_eq!(ResultFile::read(&scratch.0).unwrap().records, [record(1)]);
    }
}

mod writing {
    use super::*;

    #[test]
    fn a_full_disk_is_an_error_and_not_a_panic() {
        let mut writer = ResultWriter::create(Path::new("/dev/full")).unwrap();
        let error = writer.record(&record(1)).unwrap_err().to_string();
        assert!(error.starts_with("cannot write /dev/full: No space left"), "{error}");
    }

    #[test]
    fn numbers_that_json_lacks_and_names_that_are_none_are_refused() {
        let scratch = Scratch::new("refused");
        let mut writer = ResultWriter::create(&scratch.0).unwrap();
        let error =
            writer.record(&record(1).value("latency_us", f64::NAN)).unwrap_err().to_string();
        assert_eq!(error, "c1 at message 1 B: latency_us is NaN, which a result cannot be");
        let infinite = Record::new("c1", Source::Simulated, Point::new().with("x", f64::INFINITY));
        assert!(writer.record(&infinite).is_err());
        assert!(writer.describe(&Experiment::new("a/b", "")).is_err());
        assert_eq!(std::fs::read(&scratch.0).unwrap(), b"");
    }
}
