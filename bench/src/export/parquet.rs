//! Apache Parquet: the lines of the CSV as typed columns.

use super::{Line, column, lines_of, parameters};
use crate::point::Scalar;
use crate::record::{Provenance, Record};
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError as Refused;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};
use std::sync::Arc;
use thiserror::Error;

/// Lines of a row group: what a reader holds at once.
const LINES: usize = 1 << 16;

/// Why there is no file.
#[derive(Debug, Error)]
#[error("cannot write Parquet: {0}")]
pub struct ParquetError(#[from] Refused);

/// The cell of a line; `None` is null.
type CellOf<'a, T> = Box<dyn Fn(&Line<'a>) -> Option<T> + 'a>;

/// The cells of a column.
enum Cells<'a> {
    Text(CellOf<'a, String>),
    Number(CellOf<'a, f64>),
    Whole(CellOf<'a, i64>),
    Flag(CellOf<'a, bool>),
}

/// A column.
struct Column<'a> {
    name: String,
    cells: Cells<'a>,
}

/// The columns of the [CSV](super::csv) with the same names and lines: text, doubles, 64-bit
/// integers and booleans, uncompressed. A parameter is a number or a flag if it is one in all
/// records. What the CSV leaves empty is null.
///
/// # Errors
/// The writer refuses; the figures of records are not the cause.
pub fn parquet(records: &[Record]) -> Result<Vec<u8>, ParquetError> {
    let columns = columns(records);
    let fields = columns.iter().map(field);
    let schema = Type::group_type_builder("lines")
        .with_fields(fields.collect::<Result<Vec<_>, _>>()?)
        .build()?;
    let properties = WriterProperties::builder().set_created_by("longhaul".to_owned()).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))?;
    let lines: Vec<Line<'_>> = lines_of(records).collect();
    for some in lines.chunks(LINES) {
        let mut group = writer.next_row_group()?;
        for column in &columns {
            write(&mut group, column, some)?;
        }
        group.close()?;
    }
    Ok(writer.into_inner()?)
}

fn columns(records: &[Record]) -> Vec<Column<'_>> {
    fn text<'a>(name: &str, of: impl Fn(&Line<'a>) -> Option<String> + 'a) -> Column<'a> {
        Column { name: name.to_owned(), cells: Cells::Text(Box::new(of)) }
    }
    fn whole<'a>(name: &str, of: impl Fn(&Line<'a>) -> Option<u64> + 'a) -> Column<'a> {
        let of = move |line: &Line<'a>| of(line).map(|number| number as i64);
        Column { name: name.to_owned(), cells: Cells::Whole(Box::new(of)) }
    }
    fn made<'a>(name: &str, of: fn(&Provenance) -> &str) -> Column<'a> {
        text(name, move |line| filled(line.record.provenance.as_ref().map(of)))
    }
    let repeat = |line: &Line<'_>| line.record.provenance.as_ref()?.repeat.map(u64::from);
    let mut all = vec![
        text("experiment", |line| Some(line.record.experiment.clone())),
        text("source", |line| Some(line.record.source.name().to_owned())),
    ];
    all.extend(parameters(records).into_iter().map(|key| parameter(records, key)));
    all.extend([
        whole("repeat", repeat),
        whole("seed", |line| line.record.seed()),
        made("started_at", |made| &made.started_at),
        made("host", |made| &made.host),
        made("command", |made| &made.command),
        text("note", |line| filled(line.record.note.as_deref())),
        text("value", |line| Some(line.value.to_owned())),
        whole("sample", |line| line.sample),
        Column { name: "figure".to_owned(), cells: Cells::Number(Box::new(|line| line.figure)) },
        text("failed", |line| filled(line.failed)),
    ]);
    all
}

/// Text that the CSV does not leave empty.
fn filled(text: Option<&str>) -> Option<String> {
    text.filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The column of a parameter: text unless all its values are of another kind.
fn parameter<'a>(records: &[Record], key: &'a str) -> Column<'a> {
    let all_are = |is_one: fn(&Scalar) -> bool| {
        records.iter().filter_map(|record| record.point.get(key)).all(is_one)
    };
    let cells = if all_are(|value| matches!(value, Scalar::Number(_))) {
        Cells::Number(Box::new(move |line| line.record.point.get(key)?.as_number()))
    } else if all_are(|value| matches!(value, Scalar::Bool(_))) {
        Cells::Flag(Box::new(move |line| match line.record.point.get(key) {
            Some(Scalar::Bool(flag)) => Some(*flag),
            _ => None,
        }))
    } else {
        Cells::Text(Box::new(move |line| line.record.point.get(key).map(ToString::to_string)))
    };
    Column { name: column(key), cells }
}

fn field(column: &Column<'_>) -> Result<TypePtr, Refused> {
    let (physical, logical) = match column.cells {
        Cells::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Cells::Number(_) => (Physical::DOUBLE, None),
        Cells::Whole(_) => (Physical::INT64, None),
        Cells::Flag(_) => (Physical::BOOLEAN, None),
    };
    let builder = Type::primitive_type_builder(&column.name, physical);
    let builder = builder.with_repetition(Repetition::OPTIONAL).with_logical_type(logical);
    Ok(Arc::new(builder.build()?))
}

type Group<'w> = SerializedRowGroupWriter<'w, Vec<u8>>;

fn write<'a>(
    group: &mut Group<'_>,
    column: &Column<'a>,
    lines: &[Line<'a>],
) -> Result<(), Refused> {
    match &column.cells {
        Cells::Text(of) => {
            let bytes = |text: String| ByteArray::from(text.into_bytes());
            write_as::<ByteArrayType>(group, lines.iter().map(|line| of(line).map(bytes)))
        }
        Cells::Number(of) => write_as::<DoubleType>(group, lines.iter().map(of)),
        Cells::Whole(of) => write_as::<Int64Type>(group, lines.iter().map(of)),
        Cells::Flag(of) => write_as::<BoolType>(group, lines.iter().map(of)),
    }
}

/// Writes the next column of a row group.
fn write_as<T: DataType>(
    group: &mut Group<'_>,
    cells: impl Iterator<Item = Option<T::T>>,
) -> Result<(), Refused> {
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    for cell in cells {
        // The definition level of an optional column: 1 for a value, 0 for null.
        levels.push(i16::from(cell.is_some()));
        values.extend(cell);
    }
    let mut writer = group
        .next_column()?
        .ok_or_else(|| Refused::General("the schema has fewer columns".to_owned()))?;
    writer.typed::<T>().write_batch(&values, Some(&levels), None)?;
    writer.close()
}
