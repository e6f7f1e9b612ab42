"""The element types that SNF knows, and their sizes."""

BYTES = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8, "i32": 4, "i64": 8, "bool": 1}
