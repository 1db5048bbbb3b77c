//! Simulated cases of busy-polling CPU groups, as text and as files.

use lull_sim::groups::CaseTable;
use serde_json::{Value, json};

use crate::document::{Document, pretty};
use crate::html::published as page;

/// A case, in every form.
pub struct GroupCase(pub CaseTable);

impl Document for GroupCase {
    fn csv(&self) -> String {
        self.0.to_csv()
    }

    fn json(&self) -> std::io::Result<String> {
        let CaseTable { title, columns, rows, statements } = &self.0;
        let row = |(name, values): &(String, Vec<f64>)| {
            let values: serde_json::Map<String, Value> =
                columns.iter().zip(values).map(|(column, value)| ((*column).to_owned(), json!(value))).collect();
            json!({ "row": name, "values": values })
        };
        let statement = |(holds, what): &(bool, String)| json!({ "holds": holds, "what": what });
        pretty(&json!({
            "title": title,
            "rows": rows.iter().map(row).collect::<Vec<_>>(),
            "statements": statements.iter().map(statement).collect::<Vec<_>>(),
        }))
    }

    fn html(&self) -> String {
        page::rows(&self.0.title, &[], &[], &self.0.text())
    }
}
